module github.com/librope/librope/bindings/go

go 1.19
