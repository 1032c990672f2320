module librope

go 1.19
