// SPDX-License-Identifier: Apache-2.0

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
	addresses := make([]uint64, 48)
	for i := range addresses {
		addresses[i] = uint64(10 * (i + 1))
	}
	if found := OnDevice(addresses, false); !reflect.DeepEqual(found, addresses) {
		t.Errorf("rope_args_t and its groups have %v", found)
	}
	if found := OnDevice(addresses[:26], true); !reflect.DeepEqual(found, addresses[:26]) {
		t.Errorf("swiglu_args_t and its groups have %v", found)
	}
}
