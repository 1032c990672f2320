package rope

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// What numbers mean is tested in the C library; here it is that they arrive.

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
		Of(data, 2, 1, headDim).Select(0, 2),
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
	if shape := Of(data, 2, 1, headDim).Select(1, 0).Shape(); len(shape) != 2 || shape[1] != headDim {
		t.Errorf("shape %v", shape)
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
				if wrong { // its text is its own, whatever threads run the others
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
	for i := 0; i < 100; i++ {
		if _, err := NewDesc(thdConfig(F32)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.GC()
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

func TestExplain(t *testing.T) {
	text, err := newDesc(t, thdConfig(F32)).Explain(Args{Q: Of(make([]float32, headDim), 1, 1, headDim)})
	if err != nil || text == "" {
		t.Errorf("'%s', %v", text, err)
	}
	_, err = newDesc(t, thdConfig(F32)).Explain(Args{})
	refused(t, err, "q")
}
