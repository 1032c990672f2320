package abi

import (
	"os"
	"reflect"
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

func TestEachTensorOnADeviceHasItsOwnAddress(t *testing.T) {
	addresses := []uint64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130}
	if found := OnDevice(addresses, false); !reflect.DeepEqual(found, addresses) {
		t.Errorf("rope_args_t has %v", found)
	}
	if found := OnDevice(addresses[:9], true); !reflect.DeepEqual(found, addresses[:9]) {
		t.Errorf("swiglu_args_t has %v", found)
	}
}
