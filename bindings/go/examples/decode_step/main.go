// SPDX-License-Identifier: Apache-2.0

// A step of decoding: the new tokens of three sequences, each at its own position, rotated inside their packed QKV.
package main

import (
	"fmt"
	"log"

	rope "github.com/librope/librope/bindings/go"
)

const (
	tokens  = 3
	qHeads  = 8
	kHeads  = 2 // and as many of v
	heads   = qHeads + 2*kHeads
	headDim = 64
)

func main() {
	desc, err := rope.NewDesc(rope.Config{Device: rope.CPU, Dtype: rope.F32, Layout: rope.THD, Style: rope.Half,
		HeadDim: headDim, Theta: 10000})
	if err != nil {
		log.Fatal(err)
	}
	defer desc.Close()

	qkv := make([]float32, tokens*heads*headDim)
	for i := range qkv {
		if i%headDim < headDim/2 {
			qkv[i] = 1 // every pair is (1, 0)
		}
	}
	positions := []int64{7, 1000, 131072}

	packed := rope.Of(qkv, tokens, heads, headDim)
	err = desc.Forward(rope.Args{
		Q:         packed.Narrow(1, 0, qHeads),
		K:         packed.Narrow(1, qHeads, kHeads),
		Positions: rope.Of(positions, tokens),
	})
	if err != nil {
		log.Fatal(err)
	}

	for token, position := range positions {
		q := qkv[token*heads*headDim:]
		fmt.Printf("position %6d: the first pair is (%9.6f, %9.6f)\n", position, q[0], q[headDim/2])
	}
}
