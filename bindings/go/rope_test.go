// SPDX-License-Identifier: Apache-2.0

package rope

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// The C library's tests check the meaning of numbers; these check that numbers arrive.

const (
	headDim = 32
	pairs   = headDim / 2
)

func thdConfig(dtype Dtype) Config {
	return Config{Device: CPU, Dtype: dtype, Layout: THD, Style: Half, HeadDim: headDim, Theta: 10000, NumThreads: 1}
}

func newDesc(t *testing.T, config Config) *Desc {
	t.Helper()
	desc, err := NewDesc(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(desc.Close)
	return desc
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, words string) {
	t.Helper()
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Status != InvalidArgument || !strings.Contains(refusal.Text, words) {
		t.Errorf("refused with '%v', which must be INVALID_ARGUMENT with '%s'", err, words)
	}
}

func numbers(count int) []float32 {
	data := make([]float32, count)
	for i := range data {
		data[i] = float32(math.Sin(0.37 * float64(i)))
	}
	return data
}

// rotated turns pair i of every head, in the style of halves.
func rotated(data []float32, heads int, position func(token int) int64) []float32 {
	out := append([]float32(nil), data...)
	for row := 0; row*headDim < len(out); row++ {
		head := out[row*headDim : (row+1)*headDim]
		for i := 0; i < pairs; i++ {
			angle := float64(position(row/heads)) * math.Pow(10000, -2*float64(i)/headDim)
			x, y := float64(head[i]), float64(head[i+pairs])
			head[i] = float32(x*math.Cos(angle) - y*math.Sin(angle))
			head[i+pairs] = float32(x*math.Sin(angle) + y*math.Cos(angle))
		}
	}
	return out
}

func near(t *testing.T, found, wanted []float32) {
	t.Helper()
	if len(found) != len(wanted) {
		t.Fatalf("%d elements instead of %d", len(found), len(wanted))
	}
	for i := range found {
		if math.Abs(float64(found[i]-wanted[i])) > 2e-6 {
			t.Fatalf("element %d is %v instead of %v", i, found[i], wanted[i])
		}
	}
}

func TestInPlaceOutOfPlaceAndBack(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	given := numbers(5 * 2 * headDim)
	positions := []int32{3, 0, -7, 100, 4}
	wanted := rotated(given, 2, func(token int) int64 { return int64(positions[token]) })

	out := make([]float32, len(given))
	must(t, desc.Forward(Args{Q: Of(given, 5, 2, headDim), QOut: Of(out, 5, 2, headDim), Positions: Of(positions, 5)}))
	near(t, out, wanted)

	here := append([]float32(nil), given...)
	args := Args{Q: Of(here, 5, 2, headDim), Positions: Of(positions, 5)}
	must(t, desc.Forward(args))
	near(t, here, wanted)
	must(t, desc.Backward(args))
	near(t, here, given)
}

func TestPackedTensor(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	given := numbers(3 * 7 * headDim)
	qkv := append([]float32(nil), given...)
	packed := Of(qkv, 3, 7, headDim)
	fault := make([]int64, 2)
	must(t, desc.Forward(Args{Q: packed.Narrow(1, 0, 4), K: packed.Narrow(1, 4, 1), V: packed.Narrow(1, 5, 1),
		PositionOffset: 9, Fault: Of(fault, 2)}))
	wanted := rotated(given, 7, func(token int) int64 { return int64(token) + 9 })
	for row := 0; row < 3*7; row++ {
		source := given
		if row%7 < 6 {
			source = wanted
		}
		near(t, qkv[row*headDim:(row+1)*headDim], source[row*headDim:(row+1)*headDim])
	}
	if fault[0] != 0 || fault[1] != 0 {
		t.Errorf("fault is %v", fault)
	}
}

// normed computes the RMS norm of each head, with weights plus 1.
func normed(data, weight []float32, eps float64) []float32 {
	out := append([]float32(nil), data...)
	for row := 0; row*headDim < len(out); row++ {
		head := out[row*headDim : (row+1)*headDim]
		squares := 0.0
		for _, x := range head {
			squares += float64(x) * float64(x)
		}
		factor := 1 / math.Sqrt(squares/headDim+eps)
		for i := range head {
			head[i] = float32(float64(head[i]) * factor * (float64(weight[i]) + 1))
		}
	}
	return out
}

// heads of a packed tensor of three tokens and four heads
func part(packed []float32, first, heads int) []float32 {
	var out []float32
	for token := 0; token < 3; token++ {
		out = append(out, packed[(token*4+first)*headDim:(token*4+first+heads)*headDim]...)
	}
	return out
}

func TestNormsAndCaches(t *testing.T) {
	config := thdConfig(F32)
	config.Norm, config.NormEps, config.NormWeightOffset = NormRMS, 1e-3, 1
	desc := newDesc(t, config)
	weights := numbers(2 * headDim)
	qWeight, kWeight := weights[:headDim], weights[headDim:]
	given := numbers(3 * 4 * headDim)
	position := func(token int) int64 { return int64(token) + 1 }
	wantedQ := rotated(normed(part(given, 0, 2), qWeight, 1e-3), 2, position)
	wantedK := rotated(normed(part(given, 2, 1), kWeight, 1e-3), 1, position)
	wantedV := part(given, 3, 1)

	// Positions 1, 2 and 3 in pages 3 and 1 of two entries.
	const pages, entries = 4, 2
	slots := []int64{7, 2, 3}
	for name, cache := range map[string]Cache{
		"slots": {Slots: Of(slots, 3)},
		"page table": {PageTable: Of([]int32{9, 9, 3, 1}, 2, 2), Sequence: Of([]int32{1, 1, 1}, 3),
			Positions: Of([]int64{1, 2, 3}, 3)},
		"page list": {PageTable: Of([]int64{9, 3, 1}, 3), PageIndptr: Of([]int64{1, 3}, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			qkv := append([]float32(nil), given...)
			kOut := make([]float32, 3*headDim)
			memory := make([]float32, pages*entries*2*headDim)
			both := Of(memory, pages, entries, 1, 2*headDim)
			cache.KCache, cache.VCache = both.Narrow(3, 0, headDim), both.Narrow(3, headDim, headDim)
			packed := Of(qkv, 3, 4, headDim)
			must(t, desc.Forward(Args{Flags: VUnrotated, Q: packed.Narrow(1, 0, 2), K: packed.Narrow(1, 2, 1),
				KOut: Of(kOut, 3, 1, headDim), V: packed.Narrow(1, 3, 1), PositionOffset: 1,
				Norm:  &Norm{QWeight: Of(qWeight, headDim), KWeight: Of(kWeight, headDim)},
				Cache: &cache}))
			near(t, part(qkv, 0, 2), wantedQ)
			near(t, part(qkv, 2, 2), part(given, 2, 2))
			near(t, kOut, wantedK)
			wanted := make([]float32, len(memory))
			for token, slot := range slots {
				row := wanted[slot*2*headDim:]
				copy(row[:headDim], wantedK[token*headDim:])
				copy(row[headDim:2*headDim], wantedV[token*headDim:])
			}
			near(t, memory, wanted)
		})
	}
}

func TestOperandsOfGroups(t *testing.T) {
	config := thdConfig(F32)
	config.Norm, config.NormEps = NormRMS, 1e-6
	desc, plain := newDesc(t, config), newDesc(t, thdConfig(F32))
	x, y := numbers(headDim), numbers(headDim)
	args := Args{Q: Of(x, 1, 1, headDim), K: Of(y, 1, 1, headDim)}
	wrong := Of(numbers(3), 3)
	for words, norm := range map[string]Norm{
		"norm.q_weight has shape [3]": {QWeight: wrong},
		"norm.k_weight has shape [3]": {KWeight: wrong},
		"norm.q_bias is set":          {QBias: wrong},
		"norm.k_bias is set":          {KBias: wrong},
		"norm.q_weight: tensor: ":     {QWeight: Of(x, 99)},
	} {
		args.Norm = &norm
		refused(t, desc.Forward(args), words)
	}
	args.Norm = nil
	caches := Of(numbers(headDim), 1, 1, 1, headDim)
	slots := Of([]int64{0}, 1)
	for words, cache := range map[string]Cache{
		"cache.k_cache is absent":   {Slots: slots},
		"cache.slots is absent":     {KCache: caches},
		"cache.page_indptr is set":  {KCache: caches, Slots: slots, PageIndptr: slots},
		"cache.v_cache is set":      {VCache: caches, Slots: slots},
		"cache.positions: tensor: ": {KCache: caches, Slots: slots, Positions: Of(x, 99)},
	} {
		cache := cache
		args.Cache = &cache
		refused(t, plain.Forward(args), words)
	}
	for flags, wanted := range map[uint32]float32{0: 1, CacheSkipSlot0: 0} {
		memory := make([]float32, headDim)
		ones := []float32{1, 1}
		ones = append(ones, make([]float32, headDim-2)...)
		must(t, plain.Forward(Args{Flags: Unrotated, V: Of(ones, 1, 1, headDim),
			Cache: &Cache{Flags: flags, VCache: Of(memory, 1, 1, 1, headDim), Slots: slots}}))
		if memory[0] != wanted || memory[1] != wanted {
			t.Errorf("with flags %d the cache is %v", flags, memory)
		}
	}
	text, err := plain.Explain(Args{K: Of(x, 1, 1, headDim), Cache: &Cache{KCache: caches, Slots: slots}})
	must(t, err)
	if !strings.Contains(text, "cache") {
		t.Errorf("it would run as '%s'", text)
	}
}

// numberOf returns a nonnegative number of 8 bits from its code: E4M3 has 3 bits of fraction, E5M2 has 2.
func numberOf(code uint8, fractionBits int) float64 {
	exponent, number := int(code>>fractionBits), int(code)&(1<<fractionBits-1)
	if exponent == 0 {
		exponent = 1
	} else {
		number += 1 << fractionBits
	}
	bias := 1<<(6-fractionBits) - 1
	return math.Ldexp(float64(number), exponent-bias-fractionBits)
}

// codeOf returns the code of the number nearest to x, the even one of two, and at most the largest.
func codeOf(x float32, fractionBits int) uint8 {
	largest := uint8(0x7E)
	if fractionBits == 2 {
		largest = 0x7B
	}
	size, nearest := math.Abs(float64(x)), uint8(0)
	for code := uint8(1); code <= largest; code++ {
		distance, least := math.Abs(numberOf(code, fractionBits)-size), math.Abs(numberOf(nearest, fractionBits)-size)
		if distance < least || (distance == least && code%2 == 0) {
			nearest = code
		}
	}
	if math.Signbit(float64(x)) {
		nearest |= 0x80
	}
	return nearest
}

func TestCodesAndFactors(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	const tokens, heads = 3, 2
	given := numbers(tokens * heads * headDim)
	for i := range given {
		given[i] *= 20
	}
	slots, factor := []int64{2, -1, 0}, []float32{0.5, 3, 100}
	kScale, vScale := []float32{0.37, 2}, []float32{0.05}
	for _, flags := range []uint32{0, QuantScaleMultiplies} {
		by := func(scale float32) float32 {
			if flags != 0 {
				return scale
			}
			return 1 / scale
		}
		qOut := make([]Float8E4M3, len(given))
		kCache, vCache := make([]Float8E4M3, len(given)), make([]Float8E5M2, len(given))
		amax := []float32{0, 1, 1e9}
		x, factors := Of(given, tokens, heads, headDim), Of(factor, tokens)
		must(t, desc.Forward(Args{Flags: Unrotated, Q: x, QOut: Of(qOut, tokens, heads, headDim), K: x, V: x,
			Cache: &Cache{KCache: Of(kCache, 1, tokens, heads, headDim), VCache: Of(vCache, 1, tokens, heads, headDim),
				Slots: Of(slots, tokens)},
			Quant: &Quant{Flags: flags, KScale: Of(kScale, heads), VScale: Of(vScale, 1), AmaxOut: Of(amax, 3)},
			Input: &Input{QRowFactor: factors, KRowFactor: factors}}))
		wantedK, wantedV := make([]Float8E4M3, len(given)), make([]Float8E5M2, len(given))
		largest := float32(0)
		for i, value := range given {
			token, rest := i/(heads*headDim), i%(heads*headDim)
			product := value * factor[token]
			largest = float32(math.Max(float64(largest), math.Abs(float64(product))))
			if wanted := codeOf(product, 3); uint8(qOut[i]) != wanted {
				t.Fatalf("the code of %v is %#x instead of %#x", product, qOut[i], wanted)
			}
			if slots[token] >= 0 {
				at := int(slots[token])*heads*headDim + rest
				wantedK[at] = Float8E4M3(codeOf(product*by(kScale[rest/headDim]), 3))
				wantedV[at] = Float8E5M2(codeOf(value*by(vScale[0]), 2))
			}
		}
		if !reflect.DeepEqual(kCache, wantedK) || !reflect.DeepEqual(vCache, wantedV) {
			t.Errorf("with flags %d the caches are %v and %v instead of %v and %v", flags, kCache, vCache, wantedK, wantedV)
		}
		if amax[0] != largest || amax[1] != largest || amax[2] != 1e9 {
			t.Errorf("amax is %v, the largest %v", amax, largest)
		}
	}
}

func TestWrittenScales(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	const tokens, heads, floor = 3, 2, 3.0
	const rows = tokens * heads
	given := numbers(rows * headDim)
	for i := range given {
		if i >= headDim { // the first head stays below the floor
			given[i] *= 100
		}
	}
	slots := []int64{2, -1, 0}
	x := Of(given, tokens, heads, headDim)
	for _, flags := range []uint32{0, QuantPowerOfTwo} {
		qOut, kOut, vOut := make([]Float8E4M3, len(given)), make([]Float8E4M3, len(given)), make([]Float8E5M2, len(given))
		kCache, vCache := make([]Float8E4M3, len(given)), make([]Float8E5M2, len(given))
		qScales, kScales, vScales := make([]Float8E8M0, rows*8), make([]float32, rows), make([]float32, rows*2)
		kCacheScales, vCacheScales := make([]float32, rows*4), make([]float32, rows*16)
		must(t, desc.Forward(Args{Flags: Unrotated, Q: x, QOut: Of(qOut, tokens, heads, headDim), K: x,
			KOut: Of(kOut, tokens, heads, headDim), V: x, VOut: Of(vOut, tokens, heads, headDim),
			Cache: &Cache{KCache: Of(kCache, 1, tokens, heads, headDim), VCache: Of(vCache, 1, tokens, heads, headDim),
				KScales: Of(kCacheScales, 1, tokens, heads, 4), VScales: Of(vCacheScales, 1, tokens, heads, 16),
				Slots: Of(slots, tokens)},
			Quant: &Quant{Flags: flags, ScaleFloor: floor, QScalesOut: Of(qScales, tokens, heads, 2, 4),
				KScalesOut: Of(kScales, tokens, heads, 1), VScalesOut: Of(vScales, tokens, heads, 2)}}))

		qNumbers := make([]float32, len(qScales))
		for i, scale := range qScales {
			qNumbers[i] = float32(math.Ldexp(1, int(scale)-127))
		}
		check := func(name string, scales []float32, code func(int) uint8, cached, power bool, top float64, bits int) {
			width, groups := len(given)/len(scales), len(scales)/tokens // channels of a group, groups of a token
			wantedScales, wantedCodes := make([]float32, len(scales)), make([]uint8, len(given))
			for i := range scales {
				token := i / groups
				if cached {
					token = int(slots[token])
				}
				if token < 0 {
					continue
				}
				group, largest := given[i*width:(i+1)*width], floor
				for _, value := range group {
					largest = math.Max(largest, math.Abs(float64(value)))
				}
				quotient := largest / top
				if power {
					quotient = math.Exp2(math.Ceil(math.Log2(quotient)))
				}
				at := token*groups + i%groups
				wantedScales[at] = float32(quotient)
				for j, value := range group {
					wantedCodes[at*width+j] = codeOf(value*(1/wantedScales[at]), bits)
				}
			}
			if !reflect.DeepEqual(scales, wantedScales) {
				t.Errorf("%s, flags %d: the scales are %v instead of %v", name, flags, scales, wantedScales)
			}
			for i, wanted := range wantedCodes {
				if code(i) != wanted {
					t.Fatalf("%s, flags %d: code %d is %#x instead of %#x", name, flags, i, code(i), wanted)
				}
			}
		}
		power := flags != 0
		check("q_out", qNumbers, func(i int) uint8 { return uint8(qOut[i]) }, false, true, 448, 3)
		check("k_out", kScales, func(i int) uint8 { return uint8(kOut[i]) }, false, power, 448, 3)
		check("v_out", vScales, func(i int) uint8 { return uint8(vOut[i]) }, false, power, 57344, 2)
		check("k_cache", kCacheScales, func(i int) uint8 { return uint8(kCache[i]) }, true, power, 448, 3)
		check("v_cache", vCacheScales, func(i int) uint8 { return uint8(vCache[i]) }, true, power, 57344, 2)
	}
}

func TestPassAndLatentCaches(t *testing.T) {
	const tokens, pass, before = 3, 16, 10 // channels outside the window, and those of them before it
	const all = pass + headDim
	config := thdConfig(F32)
	config.HeadDim, config.RotaryDim, config.RotaryOffset = all, headDim, before
	desc := newDesc(t, config)
	q, k := numbers(tokens*2*headDim), numbers(tokens*headDim)
	qPass, kPass := numbers(tokens*pass), numbers(tokens*pass)
	slots, kPassScale := []int64{2, -1, 0}, []float32{0.37}
	for _, written := range []bool{false, true} {
		qOut, kCache := make([]float32, tokens*2*all), make([]float32, tokens*headDim)
		kPassCache, kPassScales := make([]Float8E4M3, tokens*pass), make([]float32, tokens*2)
		cache := &Cache{KCache: Of(kCache, 1, tokens, 1, headDim), KPassCache: Of(kPassCache, 1, tokens, 1, pass),
			Slots: Of(slots, tokens)}
		quant := &Quant{KPassScale: Of(kPassScale, 1)}
		if written {
			cache.KPassScales = Of(kPassScales, 1, tokens, 1, 2)
			quant = &Quant{ScaleFloor: 3}
		}
		shared := Strided(qPass, 0, []int64{tokens, 2, pass}, []int64{pass, 0, 1}) // shared by both heads
		must(t, desc.Forward(Args{Q: Of(q, tokens, 2, headDim), QOut: Of(qOut, tokens, 2, all),
			K: Of(k, tokens, 1, headDim), Cache: cache, Quant: quant,
			Input: &Input{QPass: shared, KPass: Of(kPass, tokens, 1, pass)}}))

		position := func(token int) int64 { return int64(token) }
		windows := rotated(q, 2, position)
		for row := 0; row < tokens*2; row++ {
			head, rest := qOut[row*all:(row+1)*all], qPass[row/2*pass:(row/2+1)*pass]
			near(t, head[before:before+headDim], windows[row*headDim:(row+1)*headDim])
			if !reflect.DeepEqual(head[:before], rest[:before]) ||
				!reflect.DeepEqual(head[before+headDim:], rest[before:]) {
				t.Fatalf("around the window row %d is %v instead of %v", row, head, rest)
			}
		}
		windows = rotated(k, 1, position)
		wantedCache, wantedCodes := make([]float32, len(kCache)), make([]Float8E4M3, len(kPassCache))
		wantedScales := make([]float32, len(kPassScales))
		for token, slot := range slots {
			if slot < 0 {
				continue
			}
			copy(wantedCache[slot*headDim:], windows[token*headDim:(token+1)*headDim])
			for i := 0; i < pass; i++ {
				scale := kPassScale[0]
				if written { // no number is above the floor
					scale = float32(3.0 / 448)
					wantedScales[int(slot)*2+i*2/pass] = scale
				}
				wantedCodes[int(slot)*pass+i] = Float8E4M3(codeOf(kPass[token*pass+i]*(1/scale), 3))
			}
		}
		near(t, kCache, wantedCache)
		if !reflect.DeepEqual(kPassCache, wantedCodes) || !reflect.DeepEqual(kPassScales, wantedScales) {
			t.Errorf("written: %t: the codes are %v with scales %v instead of %v with %v", written, kPassCache, kPassScales,
				wantedCodes, wantedScales)
		}
	}
}

func TestFactorsInBackwardAndOperandsOfQuantAndInput(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	given, factor := numbers(2*headDim), []float32{2, -0.5}
	grad := append([]float32(nil), given...)
	must(t, desc.Backward(Args{Q: Of(grad, 2, 1, headDim), Input: &Input{QRowFactor: Of(factor, 2, 1)}}))
	wanted := rotated(given, 1, func(token int) int64 { return -int64(token) })
	for i := range wanted {
		wanted[i] *= factor[i/headDim]
	}
	near(t, grad, wanted)
	sum := append([]float32(nil), given...)
	must(t, desc.Backward(Args{Flags: Accumulate, Q: Of(given, 2, 1, headDim), QOut: Of(sum, 2, 1, headDim),
		Input: &Input{QRowFactor: Of(factor, 2, 1)}}))
	for i := range wanted {
		wanted[i] += given[i]
	}
	near(t, sum, wanted)
	refused(t, desc.Backward(Args{Flags: Accumulate, Q: Of(grad, 2, 1, headDim)}), "q_out is absent")

	wrong := Of(factor, 1, 2)
	codes := make([]Float8E5M2, 3*2*headDim)
	out := Of(codes, 3, 2, 1, headDim)
	x := Of(given, 2, 1, headDim)
	args := Args{Flags: VUnrotated, Q: x, K: x, V: x, QOut: out.Select(0, 0), KOut: out.Select(0, 1),
		VOut: out.Select(0, 2)}
	for words, quant := range map[string]Quant{
		"quant.q_scale has shape [1, 2]":  {QScale: wrong},
		"quant.k_scale has shape [1, 2]":  {KScale: wrong},
		"quant.v_scale has shape [1, 2]":  {VScale: wrong},
		"quant.amax_out has shape [1, 2]": {AmaxOut: wrong},
		"quant.q_scales_out has shape":    {QScalesOut: wrong},
		"quant.scale_floor is 0.5":        {ScaleFloor: 0.5},
		"quant.flags is 0x2":              {Flags: QuantPowerOfTwo},
		"quant.q_scale: tensor: ":         {QScale: Of(factor, 99)},
	} {
		quant := quant
		args.Quant = &quant
		refused(t, desc.Forward(args), words)
	}
	args.Quant = nil
	for words, input := range map[string]Input{
		"input.q_row_factor has shape [1, 2]": {QRowFactor: wrong},
		"input.k_row_factor has shape [1, 2]": {KRowFactor: wrong},
		"input.v_row_factor has shape [1, 2]": {VRowFactor: wrong},
		"input.v_row_factor: tensor: ":        {VRowFactor: Of(factor, 99)},
	} {
		input := input
		args.Input = &input
		refused(t, desc.Forward(args), words)
	}
	config := thdConfig(F32)
	config.QuantRounding = QuantRoundFirst | 8
	var refusal *Error
	_, err := NewDesc(config)
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Text, "quant_rounding is 0x9") {
		t.Errorf("an unknown bit of QuantRounding: '%v'", err)
	}
	config = thdConfig(F32)
	config.RotationRounding = RotationRoundEach + 1
	_, err = NewDesc(config)
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Text, "rotation_rounding is 2") {
		t.Errorf("an unknown RotationRounding: '%v'", err)
	}
}

func TestEveryDtype(t *testing.T) {
	f64 := make([]float64, headDim)
	f64[0] = 1
	must(t, newDesc(t, thdConfig(F64)).Forward(Args{Q: Of(f64, 1, 1, headDim), PositionOffset: 2}))
	if math.Abs(f64[0]-math.Cos(2)) > 1e-15 || math.Abs(f64[pairs]-math.Sin(2)) > 1e-15 {
		t.Errorf("F64: (%v, %v)", f64[0], f64[pairs])
	}
	bf16 := make([]BFloat16, headDim)
	bf16[0] = 0x3f80
	must(t, newDesc(t, thdConfig(BF16)).Forward(Args{Q: Of(bf16, 1, 1, headDim)}))
	f16 := make([]Float16, headDim)
	f16[pairs] = 0x3c00
	must(t, newDesc(t, thdConfig(F16)).Forward(Args{Q: Of(f16, 1, 1, headDim)}))
	if bf16[0] != 0x3f80 || f16[pairs] != 0x3c00 {
		t.Error("position 0 changed a number")
	}
	refused(t, newDesc(t, thdConfig(F32)).Forward(Args{Q: Of(f64, 1, 1, headDim)}), "q.dtype")
}

func TestTablesAnglesSequencesAndStarts(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	cos, sin := make([]float32, 8*pairs), make([]float32, 8*pairs)
	must(t, desc.FillTables(Of(cos, 8, pairs), Of(sin, 8, pairs), 0))
	near(t, []float32{cos[3*pairs], sin[3*pairs]}, []float32{float32(math.Cos(3)), float32(math.Sin(3))})

	given := numbers(4 * headDim)
	computed, lookedUp := append([]float32(nil), given...), append([]float32(nil), given...)
	must(t, desc.Forward(Args{Q: Of(computed, 4, 1, headDim)}))
	must(t, desc.Forward(Args{Q: Of(lookedUp, 4, 1, headDim), Cos: Of(cos, 8, pairs), Sin: Of(sin, 8, pairs)}))
	for i := range computed {
		if computed[i] != lookedUp[i] {
			t.Fatal("tables give other bits than computed angles")
		}
	}

	unchanged := append([]float32(nil), given...)
	must(t, desc.Forward(Args{Q: Of(unchanged, 4, 1, headDim), Angles: Of(make([]float32, 4*pairs), 4, pairs),
		TableRows: TableByToken}))
	near(t, unchanged, given)

	sequences := append([]float32(nil), given...)
	must(t, desc.Forward(Args{Q: Of(sequences, 4, 1, headDim), CuSeqlens: Of([]int32{0, 1, 4}, 3),
		StartPositions: Of([]int64{50, 7}, 2)}))
	near(t, sequences, rotated(given, 1, func(token int) int64 { return []int64{50, 7, 8, 9}[token] }))
}

// Every tensor of one call is a different one, and each of them affects the result.
func TestEveryOperand(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	const rows = 20
	cos, sin := make([]float32, rows*pairs), make([]float32, rows*pairs)
	must(t, desc.FillTables(Of(cos, rows, pairs), Of(sin, rows, pairs), 0))
	const tokens = 3
	var given, out [3][]float32
	for i := range given {
		heads := i + 1
		given[i] = numbers((i + 2) * 100 * headDim)[i*100*headDim:][:tokens*heads*headDim]
		out[i] = make([]float32, len(given[i]))
	}
	fault := make([]int64, 2)
	of := func(data []float32) Tensor { return Of(data, tokens, int64(len(data)/tokens/headDim), headDim) }
	args := Args{
		Q: of(given[0]), QOut: of(out[0]), K: of(given[1]), KOut: of(out[1]), V: of(given[2]), VOut: of(out[2]),
		Positions:      Of([]int32{3, 5, 2}, tokens),
		CuSeqlens:      Of([]int64{0, 1, tokens}, 3),
		StartPositions: Of([]int64{4, 9}, 2),
		Cos:            Of(cos, rows, pairs), Sin: Of(sin, rows, pairs),
		PositionOffset: 6,
		Fault:          Of(fault, 2),
	}
	must(t, desc.Forward(args))
	for i := range out {
		near(t, out[i], rotated(given[i], i+1, func(token int) int64 { return []int64{13, 0, 17}[token] }))
	}
	if fault[0] != 1 || fault[1] != 2 { // token 1 would have position 20
		t.Errorf("fault is %v", fault)
	}
	text, err := desc.Explain(args)
	must(t, err)
	if !strings.HasPrefix(text, "rope F32 half on the CPU: 1 of 1 threads, ") {
		t.Error(text)
	}

	angles := make([]float32, tokens*pairs)
	for i := range angles {
		angles[i] = float32(i / pairs)
	}
	must(t, desc.Forward(Args{Q: of(given[0]), QOut: of(out[0]), Angles: Of(angles, tokens, pairs),
		TableRows: TableByToken, CuSeqlens: Of([]int64{0, 1, 2, tokens}, 4)}))
	for token := 0; token < tokens; token++ {
		x, y := float64(given[0][token*headDim+5]), float64(given[0][token*headDim+5+pairs])
		near(t, out[0][token*headDim+5:][:1],
			[]float32{float32(x*math.Cos(float64(token)) - y*math.Sin(float64(token)))})
	}
}

// A field that is refused by name has arrived.
func TestEachFieldOfAConfig(t *testing.T) {
	for words, set := range map[string]func(*Config){
		"head_dim is 63:":                       func(c *Config) { c.HeadDim = 63 },
		"rotary_dim is 7:":                      func(c *Config) { c.RotaryDim = 7 },
		"rotary_offset is -3:":                  func(c *Config) { c.RotaryDim, c.RotaryOffset = 8, -3 },
		"theta is -1.5:":                        func(c *Config) { c.Theta = -1.5 },
		"attention_scale is nan:":               func(c *Config) { c.AttentionScale = math.NaN() },
		"num_axes is 99:":                       func(c *Config) { c.NumAxes = 99 },
		"norm is 9:":                            func(c *Config) { c.Norm = 9 },
		"norm_tensors is 5:":                    func(c *Config) { c.NormTensors = NormQ | NormV },
		"norm_order is 1:":                      func(c *Config) { c.NormOrder = NormAfter },
		"norm_extent is 1:":                     func(c *Config) { c.NormExtent = NormOfToken },
		"norm_rounding is 3:":                   func(c *Config) { c.NormRounding = NormRoundBeforeWeight | NormRoundAfterWeight },
		"norm_eps is 0.5:":                      func(c *Config) { c.NormEps = 0.5 },
		"norm_weight_offset is 0.5:":            func(c *Config) { c.NormWeightOffset = 0.5 },
		"pair_block is 5:":                      func(c *Config) { c.PairBlock = 5 },
		"num_threads is -4:":                    func(c *Config) { c.NumThreads = -4 },
		"out_style is 77:":                      func(c *Config) { c.OutStyle = 77 },
		"style is 78:":                          func(c *Config) { c.Style = 78 },
		"layout is 79:":                         func(c *Config) { c.Layout = 79 },
		"dtype is 80 ":                          func(c *Config) { c.Dtype = 80 },
		"device is 81:":                         func(c *Config) { c.Device = 81 },
		"device_index is -5:":                   func(c *Config) { c.Device, c.DeviceIndex = CUDA, -5 },
		"pair_axis[1] is 1:":                    func(c *Config) { c.RotaryDim, c.PairAxis = 4, []int32{0, 1} },
		"inv_freq[1] is inf:":                   func(c *Config) { c.RotaryDim, c.Theta, c.InvFreq = 4, 0, []float64{1, math.Inf(1)} },
		"it must have one for each of 16 pairs": func(c *Config) { c.InvFreq = []float64{1} },
	} {
		config := thdConfig(F32)
		set(&config)
		_, err := NewDesc(config)
		refused(t, err, words)
	}
	for words, set := range map[string]func(*SwigluConfig){
		"alpha is nan:":          func(c *SwigluConfig) { c.Alpha = math.NaN() },
		"limit is -1:":           func(c *SwigluConfig) { c.Limit = -1 },
		"up_offset is inf:":      func(c *SwigluConfig) { c.UpOffset = math.Inf(1) },
		"out_scale is nan:":      func(c *SwigluConfig) { c.OutScale = math.NaN() },
		"num_threads is -4:":     func(c *SwigluConfig) { c.NumThreads = -4 },
		"gate_softcap is -2:":    func(c *SwigluConfig) { c.GateSoftcap = -2 },
		"up_softcap is nan:":     func(c *SwigluConfig) { c.UpSoftcap = math.NaN() },
		"limit_rule is 5:":       func(c *SwigluConfig) { c.LimitRule = 5 },
		"activation is 7:":       func(c *SwigluConfig) { c.Activation = 7 },
		"product_rounding is 6:": func(c *SwigluConfig) { c.ProductRounding = 6 },
		"dtype is 80 ":           func(c *SwigluConfig) { c.Dtype = 80 },
		"device is 81:":          func(c *SwigluConfig) { c.Device = 81 },
		"device_index is -5:":    func(c *SwigluConfig) { c.Device, c.DeviceIndex = CUDA, -5 },
	} {
		config := SwigluConfig{Device: CPU, Dtype: F32}
		set(&config)
		_, err := NewSwiglu(config)
		refused(t, err, words)
	}
	var refusal *Error
	x := Of(make([]float32, headDim), 1, 1, headDim)
	err := newDesc(t, thdConfig(F32)).Forward(Args{Q: x, Flags: 1 << 31})
	if !errors.As(err, &refusal) || refusal.Status != NotSupported || !strings.Contains(refusal.Text, "0x80000000") {
		t.Errorf("an unknown flag of rope_forward: '%v'", err)
	}
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32})
	must(t, err)
	defer swiglu.Close()
	err = swiglu.Forward(SwigluArgs{Gate: x, Up: x, Out: x, Flags: 1 << 31})
	if !errors.As(err, &refusal) || refusal.Status != NotSupported || !strings.Contains(refusal.Text, "0x80000000") {
		t.Errorf("an unknown flag of swiglu_forward: '%v'", err)
	}
}

func TestEachParameterOfAScaling(t *testing.T) {
	two, four := make([]float64, pairs), make([]float64, pairs)
	for i := range two {
		two[i], four[i] = 2, 4
	}
	for words, scaling := range map[string]Scaling{
		"factor is 3.5:":                {Factor: 3.5},
		"original_max_position is 3:":   {OriginalMaxPosition: 3},
		"sequence_length is 3:":         {SequenceLength: 3},
		"alpha is 3.5:":                 {Alpha: 3.5},
		"mixed_b is 3.5:":               {MixedB: 3.5},
		"beta_fast is 3.5:":             {BetaFast: 3.5},
		"beta_slow is 3.5:":             {BetaSlow: 3.5},
		"attention_factor is 3.5:":      {AttentionFactor: 3.5},
		"mscale is 3.5:":                {Mscale: 3.5},
		"mscale_all_dim is 3.5:":        {MscaleAllDim: 3.5},
		"low_freq_factor is 3.5:":       {LowFreqFactor: 3.5},
		"high_freq_factor is 3.5:":      {HighFreqFactor: 3.5},
		"partial_rotary_factor is 3.5:": {PartialRotaryFactor: 3.5},
		"flags is 0x1:":                 {NoTruncate: true},
		"short_factor is set:":          {Type: ScalingFactors, PairFactors: two, ShortFactor: two},
		"long_factor is set:":           {Type: ScalingFactors, PairFactors: two, LongFactor: two},
	} {
		if scaling.Type == 0 {
			scaling.Type = ScalingNone
		}
		_, _, err := ScaledFrequencies(headDim, 1e4, scaling)
		refused(t, err, words)
	}
	// LongRoPE's second array is for sequences longer than the original ones.
	for length, wanted := range map[int64]float64{100: 0.5, 101: 0.25} {
		invFreq, _, err := ScaledFrequencies(headDim, 1e4, Scaling{Type: ScalingLongrope, Factor: 2,
			OriginalMaxPosition: 100, SequenceLength: length, ShortFactor: two, LongFactor: four})
		must(t, err)
		if invFreq[0] != wanted {
			t.Errorf("LongRoPE of %d: %v", length, invFreq[0])
		}
	}
}

func TestFrequenciesAndSections(t *testing.T) {
	invFreq, scale, err := ScaledFrequencies(headDim, 1e6,
		Scaling{Type: ScalingYarn, Factor: 4, OriginalMaxPosition: 32768})
	must(t, err)
	if len(invFreq) != pairs || invFreq[0] != 1 || math.Abs(scale-(0.1*math.Log(4)+1)) > 1e-15 {
		t.Errorf("YaRN: %v, %v", invFreq, scale)
	}
	config := thdConfig(F32)
	config.Theta, config.InvFreq, config.AttentionScale = 0, invFreq, scale
	q := make([]float32, headDim)
	q[0] = 1
	must(t, newDesc(t, config).Forward(Args{Q: Of(q, 1, 1, headDim), PositionOffset: 5}))
	near(t, q[:1], []float32{float32(scale * math.Cos(5))})

	factors := make([]float64, pairs)
	for i := range factors {
		factors[i] = 2
	}
	invFreq, _, err = ScaledFrequencies(headDim, 1e4, Scaling{Type: ScalingFactors, PairFactors: factors})
	must(t, err)
	if invFreq[0] != 0.5 {
		t.Errorf("factors: %v", invFreq)
	}
	_, _, err = ScaledFrequencies(headDim, 1e4, Scaling{Type: ScalingFactors, PairFactors: factors[1:]})
	refused(t, err, "num_factors")
	_, _, err = ScaledFrequencies(headDim, 1e4,
		Scaling{Type: ScalingLongrope, ShortFactor: factors, LongFactor: factors[1:]})
	refused(t, err, "factors")
	for _, wrong := range []int32{-2, 0, 1, 4096} {
		_, _, err = ScaledFrequencies(wrong, 1e4, Scaling{Type: ScalingNone})
		refused(t, err, "rotary_dim")
	}

	pairAxis, _, err := SectionAxes(headDim, 1e4, SectionsChunked, 4, 6, 6)
	must(t, err)
	if pairAxis[3] != 0 || pairAxis[4] != 1 || pairAxis[15] != 2 {
		t.Errorf("sections: %v", pairAxis)
	}
	config = thdConfig(F32)
	config.PairAxis, config.NumAxes = pairAxis, 3
	for i := range q {
		q[i] = 1
	}
	must(t, newDesc(t, config).Forward(Args{Q: Of(q, 1, 1, headDim), Positions: Of([]int64{2, 0, 0}, 3, 1)}))
	if q[0] == 1 || q[4] != 1 {
		t.Errorf("axes: %v", q)
	}
	_, _, err = SectionAxes(headDim, 1e4, SectionsChunked, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	refused(t, err, "num_sections")
}

func TestErrorsCarryStatusAndWords(t *testing.T) {
	config := thdConfig(F32)
	config.HeadDim = 63
	_, err := NewDesc(config)
	refused(t, err, "rope_desc_create: head_dim is 63")
	if !strings.HasPrefix(err.Error(), "INVALID_ARGUMENT: rope_desc_create") {
		t.Errorf("the error reads '%v'", err)
	}
	config = thdConfig(F32)
	config.InvFreq = make([]float64, 3)
	_, err = NewDesc(config)
	refused(t, err, "InvFreq has 3 entries")

	count, reason, err := DeviceCount(CUDA)
	must(t, err)
	config = thdConfig(F32)
	config.Device = CUDA
	desc, err := NewDesc(config)
	if count == 0 {
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Status != NoDevice && refusal.Status != NotSupported || reason == "" {
			t.Errorf("no device (%s), but '%v'", reason, err)
		}
	} else {
		must(t, err)
		refused(t, desc.Forward(Args{Q: Of(make([]float32, headDim), 1, 1, headDim)}), "q is of a slice or of a device")
		desc.Close()
	}
	_, _, err = DeviceCount(7)
	refused(t, err, "rope_device_count")

	if Version() == 0 || !strings.Contains(BuildInfo(), "librope") {
		t.Errorf("version %d, %s", Version(), BuildInfo())
	}
	refused(t, newDesc(t, thdConfig(F32)).Forward(Args{}), "q")
	refused(t, newDesc(t, thdConfig(F32)).Forward(Args{Q: Of(make([]float32, headDim), 1, 1, headDim), Stream: 1}),
		"stream")
}

func TestTensorsStayInsideTheirSlices(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	data := make([]float32, 2*headDim)
	for _, wrong := range []Tensor{
		Of(data, 3, 1, headDim),
		Of(data, 1<<62, 1<<62, 2),
		Of(data),
		Of(data, 1, 1, 1, 1, 1),
		Of(data, -1, 1, headDim),
		Of([]float32(nil), 1, 1, headDim),
		Strided(data, 1, []int64{2, 1, headDim}, []int64{headDim, headDim, 1}),
		Strided(data, headDim, []int64{2, 1, headDim}, []int64{-headDim - 1, 0, 1}),
		Strided(data, 0, []int64{2, 1, headDim}, []int64{math.MaxInt64, 0, 1}),
		Strided(data, 0, []int64{2, 1, headDim}, []int64{math.MinInt64, 0, 1}),
		Strided(data, -1, []int64{1}, []int64{1}),
		Strided(data, 0, []int64{1}, []int64{1, 1}),
		Of(data, 2, 1, headDim).Narrow(0, 1, 2),
		Of(data, 2, 1, headDim).Narrow(0, math.MaxInt64, 1),
		Of(data, 2, 1, headDim).Narrow(3, 0, 1),
		Of(data, 2, 1, headDim).Narrow(3, 0, 0),
		Of(data, 2, 1, 1, headDim).Narrow(4, 0, 0),
		Of(data, 2, 1, headDim).Narrow(-1, 0, 0),
		Of(data, 2, 1, headDim).Narrow(0, -1, 1),
		Of(data, 2, 1, headDim).Narrow(0, 1, -1),
		Of(data, 2, 1, headDim).Narrow(0, 3, 0),
		Of(data, 2, 1, headDim).Select(0, 2),
		Of(data, 2, 1, headDim).Select(0, -1),
		Of(data, 2, 1, headDim).Select(-1, 0),
		Of(data, 2, 1, headDim).Select(3, 0),
		Of(data, 2, 1, 1, headDim).Select(4, 0),
		Of(data, headDim).Select(0, 0),
		Of(data, 9, 9, 9).Narrow(0, 0, 1).Select(0, 0),
	} {
		refused(t, desc.Forward(Args{Q: wrong}), "rope_forward: q: tensor: ")
	}
	refused(t, desc.Forward(Args{Q: At(4096, F32, 1, 1, headDim)}), "q is of a slice or of a device")

	for i := range data {
		data[i] = 1
	}
	backwards := Strided(data, headDim, []int64{2, 1, headDim}, []int64{-headDim, 0, 1})
	must(t, desc.Forward(Args{Q: backwards})) // the second token lies first
	if data[headDim] != 1 || data[0] == 1 {
		t.Errorf("tokens are %v and %v", data[headDim], data[0])
	}
	must(t, desc.Forward(Args{Q: Of([]float32(nil), 0, 1, headDim)}))
	must(t, desc.Forward(Args{Q: Of(data, 2, 1, headDim).Narrow(0, 1, 0)}))
	must(t, desc.Forward(Args{Q: Of(data, 2, 1, headDim).Narrow(0, 2, 0)}))
	if shape := Of(data, 2, 1, headDim).Select(1, 0).Shape(); len(shape) != 2 || shape[1] != headDim {
		t.Errorf("shape %v", shape)
	}
	if shape := Of(data, 2, headDim).Select(0, 1).Shape(); len(shape) != 1 || shape[0] != headDim {
		t.Errorf("shape %v", shape)
	}
}

func TestPartsOfMemoryOfADevice(t *testing.T) {
	for dtype, size := range map[Dtype]uintptr{F32: 4, F16: 2, BF16: 2, F64: 8, I32: 4, I64: 8, F8E4M3: 1, F8E5M2: 1,
		F8E8M0: 1, F4E2M1X2: 1} {
		tensor := At(4096, dtype, 5, 3, 7)
		if found := tensor.Narrow(0, 2, 1).Narrow(2, 4, 3).address; found != 4096+(2*3*7+4)*size {
			t.Errorf("Narrow of dtype %v at %d", dtype, found)
		}
		if found := tensor.Select(1, 2).Select(0, 3).address; found != 4096+(2*7+3*3*7)*size {
			t.Errorf("Select of dtype %v at %d", dtype, found)
		}
		if part := At(4096, dtype, 5, 3, 7).Select(1, 2); part.stride != [MaxRank]int64{21, 1} {
			t.Errorf("Select of dtype %v has strides %v", dtype, part.stride)
		}
		if found := StridedAt(4096, dtype, []int64{5, 3}, []int64{-2, 9}).Narrow(0, 4, 1).address; found != 4096-8*size {
			t.Errorf("Narrow against the stride of dtype %v at %d", dtype, found)
		}
	}
}

func TestGoroutinesShareADescriptor(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	given := numbers(64 * headDim)
	wanted := rotated(given, 1, func(token int) int64 { return int64(token) })
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(wrong bool) {
			defer group.Done()
			for round := 0; round < 20; round++ {
				q := append([]float32(nil), given...)
				if wrong { // each error has its own text, whatever other threads do
					err := desc.Forward(Args{Q: Of(q, 64, headDim)})
					if err == nil || !strings.Contains(err.Error(), "q") {
						t.Errorf("'%v'", err)
					}
					continue
				}
				err := desc.Forward(Args{Q: Of(q, 64, 1, headDim)})
				if err != nil || math.Abs(float64(q[headDim]-wanted[headDim])) > 2e-6 {
					t.Errorf("%v: %v instead of %v", err, q[headDim], wanted[headDim])
				}
			}
		}(i%2 == 1)
	}
	group.Wait()
}

func TestCloseAndFinalizer(t *testing.T) {
	desc := newDesc(t, thdConfig(F32))
	desc.Close()
	desc.Close()
	refused(t, desc.Forward(Args{Q: Of(make([]float32, headDim), 1, 1, headDim)}), "desc")
	freed(t, func() unsafe.Pointer {
		desc, err := NewDesc(thdConfig(F32))
		must(t, err)
		return unsafe.Pointer(desc.desc)
	})
	freed(t, func() unsafe.Pointer {
		swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32})
		must(t, err)
		return unsafe.Pointer(swiglu.desc)
	})
}

// freed checks that lost descriptors are destroyed: the library reuses their memory for later ones.
func freed(t *testing.T, lose func() unsafe.Pointer) {
	t.Helper()
	lost := map[unsafe.Pointer]bool{}
	for i := 0; i < 100; i++ {
		lost[lose()] = true
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		runtime.GC()
		if desc := lose(); lost[desc] {
			return
		}
	}
	t.Error("no descriptor was freed")
}

func TestSwiglu(t *testing.T) {
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, NumThreads: 1})
	must(t, err)
	defer swiglu.Close()
	const rows, width = 3, 10
	given := numbers(rows * 2 * width)
	grad := numbers(rows * width)
	scale := []float32{0.5, 1, 2}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

	gateUp := append([]float32(nil), given...)
	packed := Of(gateUp, rows, 2*width)
	gate, up := packed.Narrow(1, 0, width), packed.Narrow(1, width, width)
	out, again := make([]float32, rows*width), make([]float32, rows*width)
	gradScale := make([]float32, rows)
	must(t, swiglu.Forward(SwigluArgs{Gate: gate, Up: up, Out: Of(out, rows, width), RowScale: Of(scale, rows)}))
	must(t, swiglu.Backward(SwigluArgs{Gate: gate, Up: up, RowScale: Of(scale, rows), GradOut: Of(grad, rows, width),
		GradGate: gate, GradUp: up, GradRowScale: Of(gradScale, rows), Out: Of(again, rows, width)}))
	near(t, again, out)
	for row := 0; row < rows; row++ {
		sum := 0.0
		for column := 0; column < width; column++ {
			at := row*2*width + column
			g, u, d := float64(given[at]), float64(given[at+width]), float64(grad[row*width+column])
			r, s := float64(scale[row]), sigmoid(float64(given[at]))
			near(t, []float32{out[row*width+column], gateUp[at], gateUp[at+width]},
				[]float32{float32(g * s * u * r), float32(d * u * r * s * (1 + g*(1-s))), float32(d * g * s * r)})
			sum += d * g * s * u
		}
		near(t, gradScale[row:row+1], []float32{float32(sum)})
	}

	count := []int64{1}
	partial := []float32{7, 7, 7}
	one := Of([]float32{1, 1, 1}, 3)
	must(t, swiglu.Forward(SwigluArgs{Gate: one, Up: one, Out: Of(partial, 3), NumRows: Of(count, 1)}))
	near(t, partial, []float32{float32(sigmoid(1)), 7, 7})
	refused(t, swiglu.Forward(SwigluArgs{Gate: one, Up: Of(partial, 2), Out: Of(partial, 3)}), "swiglu_forward: up")
	_, err = NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Limit: -1})
	refused(t, err, "swiglu_desc_create: limit")
}

// gated is the formula of a gating without alpha, offset and scale.
func gated(form SwigluConfig, gate, up float64) float64 {
	capped := func(x, limit float64) float64 {
		if limit == 0 {
			return x
		}
		return limit * math.Tanh(x/limit)
	}
	limit := form.Limit
	if limit == 0 {
		limit = math.Inf(1)
	}
	g := gate
	if form.LimitRule == LimitGate {
		g = math.Min(gate, limit)
	}
	var weight float64
	switch form.Activation {
	case ActivationSwiglu:
		weight = 1 / (1 + math.Exp(-g))
	case ActivationGegluErf:
		weight = 0.5 * (1 + math.Erf(g/math.Sqrt2))
	case ActivationGegluTanh:
		weight = 0.5 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
	case ActivationReglu:
		if g > 0 {
			weight = 1
		}
	}
	activated := capped(g, form.GateSoftcap) * weight
	if form.LimitRule == LimitActivation {
		activated = math.Min(activated, limit)
	}
	return activated * capped(math.Max(-limit, math.Min(up, limit)), form.UpSoftcap)
}

func TestFormsOfGatingWithBiasesOfExperts(t *testing.T) {
	const experts, rows, width = 3, 4, 10
	const size = experts * rows * width
	given := make([]float64, 3*size+2*experts*width)
	for i := range given {
		given[i] = 3 * math.Sin(float64(i))
	}
	gate, up, grad := given[:size], given[size:2*size], given[2*size:3*size]
	gateBias, upBias := given[3*size:3*size+experts*width], given[3*size+experts*width:]
	counts := []int64{4, 0, 2}
	of := func(data []float64) Tensor { return Of(data, experts, rows, width) }
	for _, form := range []SwigluConfig{
		{},
		{Activation: ActivationGegluErf},
		{Activation: ActivationGegluTanh, GateSoftcap: 2},
		{Activation: ActivationReglu, UpSoftcap: 1.5},
		{Limit: 1.25},
		{Limit: 1.25, LimitRule: LimitActivation, UpSoftcap: 0.75},
	} {
		form.Device, form.Dtype = CPU, F64
		swiglu, err := NewSwiglu(form)
		must(t, err)
		var found [3][]float64
		for i := range found {
			found[i] = make([]float64, size)
		}
		args := SwigluArgs{Gate: of(gate), Up: of(up), Out: of(found[0]), GateBias: Of(gateBias, experts, width),
			UpBias: Of(upBias, experts, width), ExpertRows: Of(counts, experts)}
		must(t, swiglu.Forward(args))
		args.Out, args.GradOut, args.GradGate, args.GradUp = Tensor{}, of(grad), of(found[1]), of(found[2])
		must(t, swiglu.Backward(args))
		swiglu.Close()
		for i := range gate {
			expert, row, column := i/width/rows, i/width%rows, i%width
			var wanted [3]float64 // rows that do not exist are not written
			if row < int(counts[expert]) {
				const step = 1e-5
				g, u := gate[i]+gateBias[expert*width+column], up[i]+upBias[expert*width+column]
				wanted[0] = gated(form, g, u)
				wanted[1] = grad[i] * (gated(form, g+step, u) - gated(form, g-step, u)) / (2 * step)
				wanted[2] = grad[i] * (gated(form, g, u+step) - gated(form, g, u-step)) / (2 * step)
			}
			for j, y := range wanted {
				if x := found[j][i]; math.Abs(x-y) > 1e-7 {
					t.Fatalf("%+v: result %d: element %d is %v instead of %v", form, j, i, x, y)
				}
			}
		}
	}
}

func TestTheRoundedActivationAndABias(t *testing.T) {
	gate := Of([]BFloat16{0x3f80, 0x3f80}, 1, 2) // 1, and silu(1) = 0.7310586 is rounded to 0.73046875
	up := Of([]BFloat16{0x4110, 0x41a8}, 1, 2)   // 9 and 21
	for _, test := range []struct {
		rounding int32
		bias     Tensor
		wanted   [2]float32
	}{
		{0, Tensor{}, [2]float32{6.59375, 15.375}},
		{ProductRoundActivation, Tensor{}, [2]float32{6.5625, 15.3125}},
		{0, Of([]float32{14, 24}, 2), [2]float32{16.875, 33}},
		{ProductRoundActivation, Of([]float32{14, 24}, 2), [2]float32{16.75, 32.75}},
	} {
		swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: BF16, ProductRounding: test.rounding})
		must(t, err)
		out := make([]BFloat16, 2)
		must(t, swiglu.Forward(SwigluArgs{Gate: gate, Up: up, Out: Of(out, 1, 2), UpBias: test.bias}))
		for i, x := range out {
			if y := math.Float32frombits(uint32(x) << 16); y != test.wanted[i] {
				t.Errorf("rounding %d: %v instead of %v", test.rounding, y, test.wanted[i])
			}
		}
		refused(t, swiglu.Forward(SwigluArgs{Gate: gate, Up: up, Out: Of(out, 1, 2), GateBias: Of([]float32{1}, 1)}),
			"swiglu_forward: gate_bias.shape")
		refused(t, swiglu.Forward(SwigluArgs{Gate: gate, Up: up, Out: Of(out, 1, 2), GateBias: Of([]float32{1}, 2)}),
			"swiglu_forward: gate_bias: tensor: shape")
		swiglu.Close()
	}
}

func TestExplain(t *testing.T) {
	text, err := newDesc(t, thdConfig(F32)).Explain(Args{Q: Of(make([]float32, headDim), 1, 1, headDim)})
	if err != nil || text == "" {
		t.Errorf("'%s', %v", text, err)
	}
	_, err = newDesc(t, thdConfig(F32)).Explain(Args{})
	refused(t, err, "q")
}

func TestSwigluExplain(t *testing.T) {
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, NumThreads: 1})
	must(t, err)
	defer swiglu.Close()
	given, out := Of(make([]float32, 1000), 1000), make([]float32, 1000)
	for _, test := range []struct {
		args SwigluArgs
		text string
	}{
		{SwigluArgs{Gate: given, Up: given, Out: Of(out, 1000)}, "forward on the CPU: 1 of 1 threads, 0.012 MB"},
		{SwigluArgs{Gate: given, Up: given, GradOut: given, GradUp: Of(out, 1000)},
			"backward on the CPU: 1 of 1 threads, 0.016 MB"},
	} {
		text, err := swiglu.Explain(test.args)
		must(t, err)
		if text != "swiglu F32 "+test.text+" read and written" {
			t.Error(text)
		}
	}
	text, err := swiglu.Explain(SwigluArgs{Gate: given, Up: given, GradOut: given})
	refused(t, err, "swiglu_explain: grad_gate, grad_up and grad_row_scale are absent")
	if text != "" {
		t.Error(text)
	}
}

// The gradients of RMS norms in Go's own arithmetic, for heads without a rotation.
func TestNormGradients(t *testing.T) {
	config := thdConfig(F32)
	config.Norm, config.NormEps = NormRMS, 1e-3
	desc := newDesc(t, config)
	const tokens = 3
	in, given, weight := numbers(tokens*headDim), make([]float32, tokens*headDim), numbers(headDim)
	for i := range given {
		given[i] = float32(i%7) - 2.5
	}
	out, rows := make([]float32, tokens*headDim), make([]float32, 2*headDim)
	wanted, sums := make([]float32, tokens*headDim), make([]float32, 2*headDim)
	for token := 0; token < tokens; token++ {
		at := token * headDim
		squares, products := 0.0, 0.0
		for c := 0; c < headDim; c++ {
			squares += float64(in[at+c]) * float64(in[at+c]) / headDim
		}
		r := 1 / math.Sqrt(squares+1e-3)
		for c := 0; c < headDim; c++ {
			products += float64(given[at+c]*weight[c]) * float64(in[at+c]) * r / headDim
		}
		for c := 0; c < headDim; c++ {
			normed := float64(in[at+c]) * r
			wanted[at+c] = float32((float64(given[at+c]*weight[c]) - normed*products) * r)
			sums[token/2*headDim+c] += given[at+c] * float32(normed)
		}
	}
	args := Args{Flags: Unrotated, Q: Of(given, tokens, 1, headDim), QOut: Of(out, tokens, 1, headDim),
		Norm: &Norm{QWeight: Of(weight, headDim), QIn: Of(in, tokens, 1, headDim), GradQWeight: Of(rows, 2, headDim)}}
	must(t, desc.Backward(args))
	near(t, out, wanted)
	near(t, rows, sums)
	args.Norm.QIn = Tensor{}
	refused(t, desc.Backward(args), "norm.q_in is absent")
	for words, norm := range map[string]Norm{
		"norm.k_in is set":          {QIn: Of(in, tokens, 1, headDim), KIn: Of(in, tokens, 1, headDim)},
		"norm.v_in is set":          {QIn: Of(in, tokens, 1, headDim), VIn: Of(in, tokens, 1, headDim)},
		"norm.grad_k_weight is set": {QIn: Of(in, tokens, 1, headDim), GradKWeight: Of(rows, 2, headDim)},
		"norm.grad_q_bias is set":   {QIn: Of(in, tokens, 1, headDim), GradQBias: Of(rows, 2, headDim)},
		"norm.grad_k_bias is set":   {QIn: Of(in, tokens, 1, headDim), GradKBias: Of(rows, 2, headDim)},
	} {
		norm := norm
		args.Norm = &norm
		refused(t, desc.Backward(args), words)
	}
}

func TestCodesOfGating(t *testing.T) {
	const experts, rows, width, floor = 3, 4, 24, 3.0
	const size = experts * rows * width
	given := numbers(2 * size)
	gate, up, values := given[:size], given[size:], make([]float32, size)
	for i := range gate {
		gate[i] *= 30
		values[i] = float32(math.Max(float64(gate[i]), 0)) * up[i]
	}
	counts, scale := []int32{4, 0, 2}, []float32{0.37, 2, 11}
	isRow := func(row int) bool { return row%rows < int(counts[row/rows]) }
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Activation: ActivationReglu})
	must(t, err)
	defer swiglu.Close()
	args := SwigluArgs{Gate: Of(gate, experts, rows, width), Up: Of(up, experts, rows, width),
		ExpertRows: Of(counts, experts)}

	for _, flags := range []uint32{0, QuantScaleMultiplies} {
		out, amax, largest := make([]Float8E5M2, size), []float32{0.5}, float32(0.5)
		args.Out = Of(out, experts, rows, width)
		args.Quant = &SwigluQuant{Flags: flags, Scale: Of(scale, experts), AmaxOut: Of(amax, 1)}
		text, err := swiglu.Explain(args)
		must(t, err)
		if !strings.HasPrefix(text, "swiglu F32 forward on the CPU: ") {
			t.Errorf("it explains '%s'", text)
		}
		must(t, swiglu.Forward(args))
		for i, value := range values {
			by, wanted := scale[i/width/rows], uint8(0)
			if flags == 0 {
				by = 1 / by
			}
			if isRow(i / width) {
				wanted = codeOf(value*by, 2)
				largest = float32(math.Max(float64(largest), math.Abs(float64(value))))
			}
			if uint8(out[i]) != wanted {
				t.Fatalf("flags %d: code %d is %#x instead of %#x", flags, i, out[i], wanted)
			}
		}
		if amax[0] != largest {
			t.Errorf("amax is %v, the largest %v", amax, largest)
		}
	}

	for _, test := range []struct {
		flags  uint32
		groups int
		shape  []int64
	}{{0, 1, []int64{experts, rows, 1}}, {QuantPowerOfTwo, 3, []int64{experts, rows, 3}}, {0, 8, []int64{experts, rows, 2, 4}}} {
		out, scales := make([]Float8E4M3, size), make([]float32, experts*rows*test.groups)
		args.Out = Of(out, experts, rows, width)
		args.Quant = &SwigluQuant{Flags: test.flags, ScaleFloor: floor, ScalesOut: Of(scales, test.shape...),
			ScaleLayout: ScaleLayoutStrided}
		must(t, swiglu.Forward(args))
		channels := width / test.groups
		for i, scale := range scales {
			group, largest, wanted := values[i*channels:(i+1)*channels], floor, float32(0)
			for _, value := range group {
				largest = math.Max(largest, math.Abs(float64(value)))
			}
			if isRow(i / test.groups) {
				wanted = float32(largest / 448)
				if test.flags != 0 {
					wanted = float32(math.Exp2(math.Ceil(math.Log2(largest / 448))))
				}
			}
			if scale != wanted {
				t.Fatalf("%d groups: scale %d is %v instead of %v", test.groups, i, scale, wanted)
			}
			for j, value := range group {
				code := uint8(0)
				if wanted != 0 {
					code = codeOf(value*(1/wanted), 3)
				}
				if found := uint8(out[i*channels+j]); found != code {
					t.Fatalf("%d groups: code %d of group %d is %#x instead of %#x", test.groups, j, i, found, code)
				}
			}
		}
	}

	wrong := Of(scale, 1, 2)
	for words, quant := range map[string]SwigluQuant{
		"quant.scale has shape [1, 2]":      {Scale: wrong},
		"quant.scales_out has shape [1, 2]": {ScalesOut: wrong},
		"quant.amax_out has shape [1, 2]":   {AmaxOut: wrong},
		"quant.scale_floor is 0.5":          {ScaleFloor: 0.5},
		"quant.flags is 0x2":                {Flags: QuantPowerOfTwo},
		"quant.scale: tensor: ":             {Scale: Of(scale, 99)},
	} {
		quant := quant
		args.Quant = &quant
		refused(t, swiglu.Forward(args), "swiglu_forward: "+words)
	}
	args.Quant = &SwigluQuant{ScaleLayout: -1}
	var refusal *Error
	if err := swiglu.Forward(args); !errors.As(err, &refusal) || !strings.Contains(refusal.Text, "scale_layout is -1") {
		t.Errorf("an unknown layout: '%v'", err)
	}
}

// rowsOfMagnitudes returns gate, up, their products, which are not 0, and the largest product. Rows have magnitudes of
// their own.
func rowsOfMagnitudes(width int) (gate, up, values []float32, largest float32) {
	magnitudes := []float32{30, 1.7, 2e-3, 2e-4, 1e-6}
	size := len(magnitudes) * width
	given := numbers(2 * size)
	gate, up, values = given[:size], given[size:], make([]float32, size)
	for i := range gate {
		gate[i] = float32(math.Abs(float64(gate[i]))+0.01) * magnitudes[i/width]
		up[i] += float32(math.Copysign(0.01, float64(up[i])))
		values[i] = gate[i] * up[i]
	}
	return gate, up, values, largestOf(values)
}

func largestOf(values []float32) (largest float32) {
	for _, value := range values {
		largest = float32(math.Max(float64(largest), math.Abs(float64(value))))
	}
	return
}

// bytesOf4Bits returns the codes of values * factor, the even channel in the low four bits. A code is that of the
// nearest number, the even one of two, and at most 6.
func bytesOf4Bits(values []float32, factor float32) []Float4E2M1X2 {
	bytes := make([]Float4E2M1X2, len(values)/2)
	for i, value := range values {
		product := float64(value * factor)
		nearest, least := 0, math.Inf(1)
		for code, number := range []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
			distance := math.Abs(number - math.Abs(product))
			if distance < least || (distance == least && code%2 == 0) {
				nearest, least = code, distance
			}
		}
		if math.Signbit(product) {
			nearest |= 8
		}
		bytes[i/2] |= Float4E2M1X2(nearest << (i % 2 * 4))
	}
	return bytes
}

func TestGatingToNVFP4(t *testing.T) {
	const width, channels = 96, 16 // channels of a group
	gate, up, values, largest := rowsOfMagnitudes(width)
	rows := int64(len(gate) / width)
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Activation: ActivationReglu})
	must(t, err)
	defer swiglu.Close()
	// The factor that reaches the largest scale, one with scales that saturate, and none.
	for _, factors := range [][]float32{{448 * 6 / largest}, {1e4}, nil} {
		out, scales, amax := make([]Float4E2M1X2, len(gate)/2), make([]Float8E4M3, len(gate)/channels), []float32{0}
		quant, factor := SwigluQuant{ScalesOut: Of(scales, rows, width/channels), AmaxOut: Of(amax, 1)}, float32(1)
		if factors != nil {
			quant.Scale, factor = Of(factors, 1), factors[0]
		}
		must(t, swiglu.Forward(SwigluArgs{Gate: Of(gate, rows, width), Up: Of(up, rows, width),
			Out: Of(out, rows, width/2), Quant: &quant}))
		if amax[0] != largest {
			t.Errorf("amax is %v, the largest %v", amax, largest)
		}
		for i, found := range scales {
			group := values[i*channels : (i+1)*channels]
			quotient := largestOf(group) / 6
			code, by := codeOf(factor*quotient, 3), float32(0)
			if uint8(found) != code {
				t.Fatalf("factor %v: scale %d is %#x instead of %#x", factors, i, found, code)
			}
			if code != 0 {
				by = factor / float32(numberOf(code, 3))
			}
			bytes, wanted := out[i*channels/2:(i+1)*channels/2], bytesOf4Bits(group, by)
			if !reflect.DeepEqual(bytes, wanted) {
				t.Fatalf("factor %v: the codes of group %d are %#x instead of %#x", factors, i, bytes, wanted)
			}
		}
	}
}

func TestGatingToMXFP4(t *testing.T) {
	const width, channels = 96, 32 // channels of a group
	gate, up, values, _ := rowsOfMagnitudes(width)
	rows := int64(len(gate) / width)
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Activation: ActivationReglu})
	must(t, err)
	defer swiglu.Close()
	// The second of three parts of the output is written.
	size := len(gate) / 2
	out, scales := make([]Float4E2M1X2, 3*size), make([]Float8E8M0, len(gate)/channels)
	args := SwigluArgs{Gate: Of(gate, rows, width), Up: Of(up, rows, width),
		Out:   Of(out, 3*rows, width/2).Narrow(0, rows, rows),
		Quant: &SwigluQuant{ScalesOut: Of(scales, rows, width/channels)}}
	must(t, swiglu.Forward(args))
	wanted := make([]Float4E2M1X2, size)
	for i, found := range scales {
		group := values[i*channels : (i+1)*channels]
		exponent := -127
		for 6*math.Ldexp(1, exponent) < float64(largestOf(group)) {
			exponent++
		}
		if int(found) != exponent+127 {
			t.Fatalf("scale %d is %d instead of %d", i, found, exponent+127)
		}
		copy(wanted[i*channels/2:], bytesOf4Bits(group, float32(math.Ldexp(1, -exponent))))
	}
	wanted = append(append(make([]Float4E2M1X2, size), wanted...), make([]Float4E2M1X2, size)...)
	if !reflect.DeepEqual(out, wanted) {
		t.Errorf("the codes are %#x instead of %#x", out, wanted)
	}

	args.Quant.Scale = Of([]float32{2}, 1)
	refused(t, swiglu.Forward(args), "swiglu_forward: quant.scale")
	args.Quant, args.Out = nil, Of(out, rows, width)
	refused(t, swiglu.Forward(args), "swiglu_forward: out.shape[1] is 96:")
}

func TestGatingByColumn(t *testing.T) {
	const rows, width, groups = 6, 10, 2 // groups of three rows, and of five channels
	const size = rows * width
	given := numbers(3 * size)
	gate, up, grad := given[:size], given[size:2*size], given[2*size:]
	of := func(data []float32) Tensor { return Of(data, rows, width) }
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Activation: ActivationReglu})
	must(t, err)
	defer swiglu.Close()

	out, gradGate, gradUp := make([]float32, size), make([]float32, size), make([]float32, size)
	args := SwigluArgs{Gate: of(gate), Up: of(up), Out: of(out)}
	must(t, swiglu.Forward(args))
	args.Out, args.GradOut, args.GradGate, args.GradUp = Tensor{}, of(grad), of(gradGate), of(gradUp)
	must(t, swiglu.Backward(args))

	// Exponents and codes are those of the values.
	check := func(name string, values []float32, scales []Float8E8M0, codes []uint8, byColumn bool, fractionBits int) {
		t.Helper()
		top := 448.0
		if fractionBits == 2 {
			top = 57344
		}
		for i, scale := range scales {
			var group []int
			if byColumn {
				for row := 0; row < rows/groups; row++ {
					group = append(group, (i/width*(rows/groups)+row)*width+i%width)
				}
			} else {
				for channel := 0; channel < width/groups; channel++ {
					group = append(group, i*(width/groups)+channel)
				}
			}
			largest := math.Exp2(-127) * top
			for _, j := range group {
				largest = math.Max(largest, math.Abs(float64(values[j])))
			}
			exponent := math.Ceil(math.Log2(largest / top))
			if float64(scale) != exponent+127 {
				t.Fatalf("%s: scale %d is %d instead of %v", name, i, scale, exponent+127)
			}
			for _, j := range group {
				if wanted := codeOf(float32(float64(values[j])*math.Exp2(-exponent)), fractionBits); codes[j] != wanted {
					t.Fatalf("%s: code %d is %#x instead of %#x", name, j, codes[j], wanted)
				}
			}
		}
	}
	bytesOf := func(codes []Float8E5M2) (bytes []uint8) {
		for _, code := range codes {
			bytes = append(bytes, uint8(code))
		}
		return
	}

	codes, scales, amax := make([]Float8E5M2, size), make([]Float8E8M0, 3*groups*width), []float32{0}
	// The second of three parts of the scales is written.
	second := Of(scales, 3*groups, width).Narrow(0, groups, groups)
	args = SwigluArgs{Gate: of(gate), Up: of(up),
		Column: &SwigluColumn{Out: Of(codes, rows, width), ScalesOut: second, AmaxOut: Of(amax, 1)}}
	must(t, swiglu.Forward(args))
	check("out", out, scales[groups*width:2*groups*width], bytesOf(codes), true, 2)
	largest := 0.0
	for _, value := range out {
		largest = math.Max(largest, math.Abs(float64(value)))
	}
	if float64(amax[0]) != largest {
		t.Errorf("amax is %v, the largest %v", amax, largest)
	}

	codesOf := [4][]Float8E5M2{}
	scalesOf := [4][]Float8E8M0{}
	for i := range codesOf {
		codesOf[i], scalesOf[i] = make([]Float8E5M2, size), make([]Float8E8M0, []int{rows * groups, groups * width}[i/2])
	}
	args = SwigluArgs{Gate: of(gate), Up: of(up), GradOut: of(grad),
		GradGate: Of(codesOf[0], rows, width), GradUp: Of(codesOf[1], rows, width),
		Quant: &SwigluQuant{GradGateScalesOut: Of(scalesOf[0], rows, groups), GradUpScalesOut: Of(scalesOf[1], rows, groups)},
		Column: &SwigluColumn{GradGate: Of(codesOf[2], rows, width), GradGateScalesOut: Of(scalesOf[2], groups, width),
			GradUp: Of(codesOf[3], rows, width), GradUpScalesOut: Of(scalesOf[3], groups, width)}}
	must(t, swiglu.Backward(args))
	for i, values := range [][]float32{gradGate, gradUp, gradGate, gradUp} {
		check(fmt.Sprintf("gradient %d", i), values, scalesOf[i], bytesOf(codesOf[i]), i >= 2, 2)
	}

	for words, column := range map[string]SwigluColumn{
		"column.flags is 0x2":       {Flags: QuantPowerOfTwo, Out: Of(codes, rows, width)},
		"column.scale_floor is 0.5": {ScaleFloor: 0.5, Out: Of(codes, rows, width)},
		"column.scale_layout is 1":  {ScaleLayout: 1, Out: Of(codes, rows, width)},
		"column.grad_up is set":     {GradUp: Of(codes, rows, width)},
		"column.amax_out: tensor: ": {AmaxOut: Of(amax, 99)},
	} {
		column := column
		refused(t, swiglu.Forward(SwigluArgs{Gate: of(gate), Up: of(up), Out: of(out), Column: &column}),
			"swiglu_forward: "+words)
	}
}

func TestGatingRoundedBeforeCodes(t *testing.T) {
	// 1.015625 * 1.015625 = 1.031494 is 1.03125 in bf16; with it, the largest code is reached exactly.
	gate, out, scales := []BFloat16{0x3f82, 0x3f82}, make([]Float8E4M3, 2), make([]float32, 1)
	for rounding, wanted := range map[int32]float32{0: float32(1.015625) * 1.015625 / 448, QuantRoundFirst: 1.03125 / 448.0} {
		swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: BF16, Activation: ActivationReglu, QuantRounding: rounding})
		must(t, err)
		must(t, swiglu.Forward(SwigluArgs{Gate: Of(gate, 1, 2), Up: Of(gate, 1, 2), Out: Of(out, 1, 2),
			Quant: &SwigluQuant{ScalesOut: Of(scales, 1, 1)}}))
		if scales[0] != wanted || out[0] != 0x7e || out[1] != 0x7e {
			t.Errorf("rounding %d: %v and %#x", rounding, scales, out)
		}
		swiglu.Close()
	}
	_, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: BF16, QuantRounding: QuantRoundFirst | 8})
	var refusal *Error
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Text, "quant_rounding is 0x9") {
		t.Errorf("an unknown bit of QuantRounding: '%v'", err)
	}
}

func TestGatingOfExpertsBackToBack(t *testing.T) {
	const rows, width = 7, 10
	given := numbers(3*rows*width + 2*width)
	gate, up, grad := given[:rows*width], given[rows*width:2*rows*width], given[2*rows*width:3*rows*width]
	bias, factors := given[3*rows*width:], []float32{0.5, -2, 3}
	offsets, index := []int32{1, 4, 6}, []int64{0, 2, -1, 1, 0, 3, 2}
	experts := []int{-1, 0, -1, 0, 1, -1, -1} // of rows; rows 0 and 6 have no expert, rows 2 and 5 no factor
	swiglu, err := NewSwiglu(SwigluConfig{Device: CPU, Dtype: F32, Activation: ActivationReglu})
	must(t, err)
	defer swiglu.Close()
	of := func(data []float32) Tensor { return Of(data, rows, width) }
	out, gradGate, gradFactors := make([]float32, rows*width), make([]float32, rows*width), make([]float32, rows)
	args := SwigluArgs{Gate: of(gate), Up: of(up), Out: of(out), UpBias: Of(bias, 2, width), RowScale: Of(factors, 3),
		ExpertOffsets: Of(offsets, 3), RowIndex: Of(index, rows)}
	must(t, swiglu.Forward(args))
	args.Out, args.GradOut, args.GradGate, args.GradRowScale = Tensor{}, of(grad), of(gradGate), Of(gradFactors, rows)
	must(t, swiglu.Backward(args))
	for row, expert := range experts {
		var sum float64
		for column := 0; column < width; column++ {
			i := row*width + column
			var wanted [2]float64
			if expert >= 0 {
				g, u := math.Max(float64(gate[i]), 0), float64(up[i])+float64(bias[expert*width+column])
				factor := float64(factors[index[row]])
				wanted[0] = g * u * factor
				if g > 0 {
					wanted[1] = float64(grad[i]) * u * factor
				}
				sum += float64(grad[i]) * g * u
			}
			for j, found := range []float32{out[i], gradGate[i]} {
				if math.Abs(float64(found)-wanted[j]) > 1e-5 {
					t.Fatalf("result %d: element %d is %v instead of %v", j, i, found, wanted[j])
				}
			}
		}
		if math.Abs(float64(gradFactors[row])-sum) > 1e-4 {
			t.Errorf("the gradient of factor %d is %v instead of %v", row, gradFactors[row], sum)
		}
	}
}
