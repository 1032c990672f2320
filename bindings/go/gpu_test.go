// SPDX-License-Identifier: Apache-2.0

package rope

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/driver"
)

// These tests show that device memory and streams arrive in the same fields as slices. Without a GPU they are skipped,
// with the reason.

// onDevice locks the test's goroutine to a thread with the device's context.
func onDevice(t *testing.T) driver.Context {
	t.Helper()
	count, reason, err := DeviceCount(CUDA)
	must(t, err)
	if count == 0 {
		t.Skip("needs a GPU: " + reason)
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	return driver.FirstDevice()
}

// buffer has elements in the device's memory.
type buffer[T Element] struct {
	address uintptr
	length  int
}

func newBuffer[T Element](t *testing.T, host []T) buffer[T] {
	b := buffer[T]{driver.Alloc(unsafe.Pointer(&host[0]), uintptr(len(host))*unsafe.Sizeof(host[0])), len(host)}
	t.Cleanup(func() { driver.Free(b.address) })
	return b
}

func (b buffer[T]) at(shape ...int64) Tensor { return At(b.address, dtypeOf[T](), shape...) }

// after returns the contents when the stream has done its work.
func (b buffer[T]) after(stream uintptr) []T {
	driver.Wait(stream)
	host := make([]T, b.length)
	driver.Read(unsafe.Pointer(&host[0]), b.address, uintptr(b.length)*unsafe.Sizeof(host[0]))
	return host
}

func newStream(t *testing.T) uintptr {
	stream := driver.NewStream()
	t.Cleanup(func() { driver.DestroyStream(stream) })
	return stream
}

func cudaConfig(dtype Dtype) Config {
	config := thdConfig(dtype)
	config.Device = CUDA
	return config
}

// Forward and backward inside a packed tensor have the bits of the CPU.
func packedQkv[T Element](t *testing.T, given []T) {
	const tokens, qHeads, kHeads, heads = 37, 4, 2, 8
	positions := make([]int64, tokens)
	for token := range positions {
		positions[token] = int64(token*token*77 - 1000)
	}
	cpu, cuda := newDesc(t, thdConfig(dtypeOf[T]())), newDesc(t, cudaConfig(dtypeOf[T]()))
	stream := newStream(t)
	onHost := append([]T(nil), given...)
	there, positionsThere := newBuffer(t, given), newBuffer(t, positions)
	args := func(packed, positions Tensor, stream uintptr) Args {
		return Args{Q: packed.Narrow(1, 0, qHeads), K: packed.Narrow(1, qHeads, kHeads), Positions: positions,
			Stream: stream}
	}
	host := args(Of(onHost, tokens, heads, headDim), Of(positions, tokens), 0)
	device := args(there.at(tokens, heads, headDim), positionsThere.at(tokens), stream)
	for _, backward := range []bool{false, true} {
		if backward {
			must(t, cpu.Backward(host))
			must(t, cuda.Backward(device))
		} else {
			must(t, cpu.Forward(host))
			must(t, cuda.Forward(device))
		}
		if !reflect.DeepEqual(there.after(stream), onHost) {
			t.Errorf("backward %v of dtype %v: other bits than on the CPU", backward, dtypeOf[T]())
		}
	}
}

func TestPackedQkvOnADevice(t *testing.T) {
	onDevice(t)
	given := numbers(37 * 8 * headDim)
	bf16, f64 := make([]BFloat16, len(given)), make([]float64, len(given))
	for i, x := range given {
		bf16[i], f64[i] = BFloat16(math.Float32bits(x)>>16), float64(x)
	}
	packedQkv(t, given)
	packedQkv(t, bf16)
	packedQkv(t, f64)
}

func TestNormsAndCachesOnADevice(t *testing.T) {
	onDevice(t)
	const tokens, qHeads, kHeads, heads, rows = 37, 4, 2, 8, 48
	given, weight := numbers(tokens*heads*headDim), numbers(headDim)
	positions, slots := make([]int64, tokens), make([]int32, tokens)
	for token := range positions {
		positions[token] = int64(token*token*77 - 1000)
		slots[token] = int32(token*7%rows - 1) // the first token is not cached
	}
	step := func(device Device, packed, weight, positions, slots, caches Tensor, stream uintptr) {
		config := thdConfig(F32)
		config.Device, config.Norm, config.NormEps = device, NormRMS, 1e-6
		must(t, newDesc(t, config).Forward(Args{Flags: VUnrotated, Q: packed.Narrow(1, 0, qHeads),
			K: packed.Narrow(1, qHeads, kHeads), V: packed.Narrow(1, qHeads+kHeads, kHeads), Positions: positions,
			Norm: &Norm{QWeight: weight}, Cache: &Cache{Slots: slots, KCache: caches.Narrow(3, 0, headDim),
				VCache: caches.Narrow(3, headDim, headDim)}, Stream: stream}))
	}
	onHost, cached := append([]float32(nil), given...), make([]float32, rows*kHeads*2*headDim)
	there, cachedThere := newBuffer(t, given), newBuffer(t, cached)
	step(CPU, Of(onHost, tokens, heads, headDim), Of(weight, headDim), Of(positions, tokens), Of(slots, tokens),
		Of(cached, rows/16, 16, kHeads, 2*headDim), 0)
	stream := newStream(t)
	step(CUDA, there.at(tokens, heads, headDim), newBuffer(t, weight).at(headDim), newBuffer(t, positions).at(tokens),
		newBuffer(t, slots).at(tokens), cachedThere.at(rows/16, 16, kHeads, 2*headDim), stream)
	if !reflect.DeepEqual(there.after(stream), onHost) || !reflect.DeepEqual(cachedThere.after(stream), cached) {
		t.Error("other bits than on the CPU")
	}
}

func TestTablesAndTheFaultCounterOnADevice(t *testing.T) {
	onDevice(t)
	const tokens, rows = 37, 30
	given := numbers(tokens * headDim)
	desc := newDesc(t, cudaConfig(F32))
	cos, sin := newBuffer(t, make([]float32, rows*pairs)), newBuffer(t, make([]float32, rows*pairs))
	must(t, desc.FillTables(cos.at(rows, pairs), sin.at(rows, pairs), 0))
	q, qOut, fault := newBuffer(t, given), newBuffer(t, make([]float32, len(given))), newBuffer(t, make([]int64, 2))
	must(t, desc.Forward(Args{Q: q.at(tokens, 1, headDim), QOut: qOut.at(tokens, 1, headDim), Cos: cos.at(rows, pairs),
		Sin: sin.at(rows, pairs), Fault: fault.at(2)}))
	if found := fault.after(0); found[0] != tokens-rows || found[1] != rows+1 {
		t.Errorf("fault is %v", found)
	}
	wanted := append([]float32(nil), given...)
	must(t, newDesc(t, thdConfig(F32)).Forward(Args{Q: Of(wanted[:rows*headDim], rows, 1, headDim)}))
	if !reflect.DeepEqual(qOut.after(0), wanted) || !reflect.DeepEqual(q.after(0), given) {
		t.Error("other bits than on the CPU")
	}
}

func TestSwigluOnADevice(t *testing.T) {
	onDevice(t)
	const rows, width = 37, 100
	data := numbers(3 * rows * width)
	gate, up, grad := data[:rows*width], data[rows*width:2*rows*width], data[2*rows*width:]
	stream := newStream(t)
	var wanted [3][]float32
	var found [3]buffer[float32]
	for i := range wanted {
		wanted[i] = make([]float32, rows*width)
		found[i] = newBuffer(t, wanted[i])
	}
	run := func(device Device, stream uintptr, tensors ...Tensor) {
		swiglu, err := NewSwiglu(SwigluConfig{Device: device, Dtype: F32})
		must(t, err)
		defer swiglu.Close()
		must(t, swiglu.Forward(SwigluArgs{Gate: tensors[0], Up: tensors[1], Out: tensors[3], Stream: stream}))
		must(t, swiglu.Backward(SwigluArgs{Gate: tensors[0], Up: tensors[1], GradOut: tensors[2], GradGate: tensors[4],
			GradUp: tensors[5], Stream: stream}))
	}
	of := func(data []float32) Tensor { return Of(data, rows, width) }
	at := func(b buffer[float32]) Tensor { return b.at(rows, width) }
	run(CPU, 0, of(gate), of(up), of(grad), of(wanted[0]), of(wanted[1]), of(wanted[2]))
	run(CUDA, stream, at(newBuffer(t, gate)), at(newBuffer(t, up)), at(newBuffer(t, grad)), at(found[0]), at(found[1]),
		at(found[2]))
	for i := range wanted {
		for j, x := range found[i].after(stream) {
			if y := wanted[i][j]; math.Abs(float64(x-y)) > 2e-6*math.Abs(float64(y))+1e-12 {
				t.Fatalf("result %d: element %d is %v instead of %v", i, j, x, y)
			}
		}
	}
}

func TestGegluOfExpertsOnADevice(t *testing.T) {
	onDevice(t)
	const experts, rows, width = 2, 37, 50
	const size = experts * rows * width
	data, bias, counts := numbers(2*size), numbers(experts*width), []int32{rows, 5}
	stream := newStream(t)
	var wanted [3][]float32
	var found [3]buffer[float32]
	for i := range wanted {
		wanted[i] = make([]float32, size)
		found[i] = newBuffer(t, wanted[i])
	}
	run := func(device Device, args SwigluArgs) {
		swiglu, err := NewSwiglu(SwigluConfig{Device: device, Dtype: F32, Activation: ActivationGegluErf, GateSoftcap: 0.5})
		must(t, err)
		defer swiglu.Close()
		args.GradOut = args.Gate
		must(t, swiglu.Backward(args))
	}
	of := func(data []float32) Tensor { return Of(data, experts, rows, width) }
	at := func(b buffer[float32]) Tensor { return b.at(experts, rows, width) }
	run(CPU, SwigluArgs{Gate: of(data[:size]), Up: of(data[size:]), Out: of(wanted[0]), GradGate: of(wanted[1]),
		GradUp: of(wanted[2]), GateBias: Of(bias, experts, width), UpBias: Of(bias[width:], width),
		ExpertRows: Of(counts, experts)})
	run(CUDA, SwigluArgs{Gate: at(newBuffer(t, data[:size])), Up: at(newBuffer(t, data[size:])), Out: at(found[0]),
		GradGate: at(found[1]), GradUp: at(found[2]), GateBias: newBuffer(t, bias).at(experts, width),
		UpBias: newBuffer(t, bias[width:]).at(width), ExpertRows: newBuffer(t, counts).at(experts), Stream: stream})
	for i := range wanted {
		for j, x := range found[i].after(stream) {
			if y := wanted[i][j]; math.Abs(float64(x-y)) > 1e-5 {
				t.Fatalf("result %d: element %d is %v instead of %v", i, j, x, y)
			}
		}
	}
}

func TestGoroutinesWithStreamsOfTheirOwn(t *testing.T) {
	context := onDevice(t)
	const tokens = 37
	desc := newDesc(t, cudaConfig(F32))
	given := numbers(tokens * headDim)
	var group sync.WaitGroup
	for i := int64(0); i < 4; i++ {
		wanted := append([]float32(nil), given...)
		must(t, newDesc(t, thdConfig(F32)).Forward(Args{Q: Of(wanted, tokens, 1, headDim), PositionOffset: i}))
		q, qOut, stream := newBuffer(t, given), newBuffer(t, make([]float32, len(given))), newStream(t)
		group.Add(1)
		go func(i int64) {
			defer group.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			context.MakeCurrent()
			for round := 0; round < 50; round++ {
				err := desc.Forward(Args{Q: q.at(tokens, 1, headDim), QOut: qOut.at(tokens, 1, headDim), PositionOffset: i,
					Stream: stream})
				if err != nil || !reflect.DeepEqual(qOut.after(stream), wanted) {
					t.Errorf("%v, or other bits than on the CPU", err)
				}
			}
		}(i)
	}
	group.Wait()
}

func TestWhatIsRefusedOnADevice(t *testing.T) {
	onDevice(t)
	desc := newDesc(t, cudaConfig(F32))
	refused(t, desc.Forward(Args{Q: Of(make([]float32, headDim), 1, 1, headDim)}), "q is of a slice or of a device")
	refused(t, desc.Forward(Args{Q: At(4096, F32, 1, 1, headDim/2)}), "rope_forward: q.shape")
	count, _, err := DeviceCount(CUDA)
	must(t, err)
	config := cudaConfig(F32)
	config.DeviceIndex = int32(count)
	_, err = NewDesc(config)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Status != NoDevice {
		t.Errorf("'%v' instead of NO_DEVICE", err)
	}
}
