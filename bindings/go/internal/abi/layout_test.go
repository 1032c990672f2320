package abi

import (
	"os"
	"testing"
)

func TestLayoutIsTheGoldenOne(t *testing.T) {
	golden, err := os.ReadFile("../../../../tests/abi/layout.golden")
	if os.IsNotExist(err) {
		t.Skip("not in librope's own tree")
	}
	if err != nil {
		t.Fatal(err)
	}
	if found := Layout(); found != string(golden) {
		t.Errorf("cgo sees\n%s\ninstead of\n%s", found, golden)
	}
}
