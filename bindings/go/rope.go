// Package rope is librope from Go: rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and
// NVIDIA GPUs.
//
// A Desc or Swiglu holds what selects code and never changes; any number of goroutines may use one at once. Calls take
// tensors: slices for the CPU, addresses for a device. Nothing is copied, and packed tensors are several tensors over
// one slice. <rope/rope.h> is the manual of every field; a field that is left zero is "not given", as there.
//
// examples/decode_step is a complete program.
//
// A module of your own has the package in its go.mod by the path of a checkout,
//
//	require librope v0.0.0
//	replace librope => ./librope/bindings/go
//
// and imports it as rope "librope". cgo asks pkg-config for the library: one outside the system's folders takes
// PKG_CONFIG_PATH to build, and to run LD_LIBRARY_PATH or an rpath in CGO_LDFLAGS.
package rope

/*
#cgo pkg-config: rope
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Status is rope_status_t.
type Status int32

const (
	InvalidArgument Status = C.ROPE_STATUS_INVALID_ARGUMENT // the request is wrong on any machine
	NotSupported    Status = C.ROPE_STATUS_NOT_SUPPORTED    // well formed, but not served by this version, build or device
	OutOfMemory     Status = C.ROPE_STATUS_OUT_OF_MEMORY    // host memory
	NoDevice        Status = C.ROPE_STATUS_NO_DEVICE        // no driver, none visible, or none that this code runs on
	CudaError       Status = C.ROPE_STATUS_CUDA_ERROR       // the CUDA runtime refused; the text carries its words
	InternalError   Status = C.ROPE_STATUS_INTERNAL_ERROR   // a bug in librope: please report the text
)

func (s Status) String() string { return C.GoString(C.rope_status_name(C.rope_status_t(s))) }

// Error is what a refused call has to say: function, field, value, rule.
type Error struct {
	Status Status
	Text   string
}

func (e *Error) Error() string { return e.Status.String() + ": " + e.Text }

func invalid(format string, values ...any) error {
	return &Error{InvalidArgument, fmt.Sprintf(format, values...)}
}

// errorText receives rope_last_error.
type errorText [512]C.char

func (t *errorText) pointer() *C.char { return &t[0] }

func (t *errorText) size() C.size_t { return C.size_t(len(t)) }

func (t *errorText) of(status C.rope_status_t) error {
	if status == C.ROPE_STATUS_SUCCESS {
		return nil
	}
	return &Error{Status(status), C.GoString(t.pointer())}
}

// Device is rope_device_t.
type Device int32

const (
	CPU  Device = C.ROPE_DEVICE_CPU
	CUDA Device = C.ROPE_DEVICE_CUDA
)

// Layout is the order of a tensor's axes: batch, sequence, heads, channels.
type Layout int32

const (
	BSHD Layout = C.ROPE_LAYOUT_BSHD
	SBHD Layout = C.ROPE_LAYOUT_SBHD
	BHSD Layout = C.ROPE_LAYOUT_BHSD
	THD  Layout = C.ROPE_LAYOUT_THD // rank 3: all tokens of all sequences, back to back
)

// Style says which channels of the rotated window form a pair.
type Style int32

const (
	Half        Style = C.ROPE_STYLE_HALF        // channels i and i + R/2: Llama in Hugging Face, GPT-NeoX, Qwen
	Interleaved Style = C.ROPE_STYLE_INTERLEAVED // channels 2i and 2i + 1: GPT-J, Llama by Meta, DeepSeek
)

// TableRows says how rows of cos, sin and angles are found.
type TableRows int32

const (
	TableByPosition TableRows = C.ROPE_TABLE_BY_POSITION
	TableByToken    TableRows = C.ROPE_TABLE_BY_TOKEN
)

// ProgrammaticLaunch is a flag of calls.
const ProgrammaticLaunch uint32 = C.ROPE_FLAG_PROGRAMMATIC_LAUNCH

// Version is the version of the loaded library: major * 10000 + minor * 100 + patch.
func Version() uint32 { return uint32(C.rope_version()) }

// BuildInfo is one line for bug reports.
func BuildInfo() string { return C.GoString(C.rope_build_info()) }

// DeviceCount says how many devices of a kind this process can use, and, where there are none, why.
func DeviceCount(device Device) (count int, reason string, err error) {
	var text errorText
	var found C.int32_t
	status := C.rope_go_device_count(C.rope_device_t(device), &found, text.pointer(), text.size())
	return int(found), C.GoString(text.pointer()), text.of(status)
}

// Config is rope_config_t. Device, Dtype, Layout, Style and HeadDim are required.
type Config struct {
	Device         Device
	DeviceIndex    int32
	Dtype          Dtype
	Layout         Layout
	Style          Style
	HeadDim        int32
	RotaryDim      int32 // channels that are rotated; 0: HeadDim
	RotaryOffset   int32
	Theta          float64 // 0 without InvFreq: for tables or angles only
	AttentionScale float64 // 0: 1
	InvFreq        []float64
	PairAxis       []int32
	NumAxes        int32 // 0: 1
	PairBlock      int32 // 0: RotaryDim
	NumThreads     int32 // CPU; 0: as many processors as the thread may run on
	OutStyle       Style // 0: Style
}

// Desc is a rotation: device, type, layout, geometry and frequencies.
type Desc struct {
	desc   *C.rope_desc_t
	device Device
}

// NewDesc checks the config and loads what calls will need.
func NewDesc(config Config) (*Desc, error) {
	width := config.RotaryDim
	if width == 0 {
		width = config.HeadDim
	}
	for _, array := range []struct {
		field  string
		length int
	}{{"InvFreq", len(config.InvFreq)}, {"PairAxis", len(config.PairAxis)}} {
		if array.length != 0 && array.length != int(width/2) {
			return nil, invalid("rope_desc_create: %s has %d entries: it must have one for each of %d pairs",
				array.field, array.length, width/2)
		}
	}
	c := C.rope_config_t{
		struct_size:     C.sizeof_rope_config_t,
		device:          C.rope_device_t(config.Device),
		device_index:    C.int32_t(config.DeviceIndex),
		dtype:           C.rope_dtype_t(config.Dtype),
		layout:          C.rope_layout_t(config.Layout),
		style:           C.rope_style_t(config.Style),
		head_dim:        C.int32_t(config.HeadDim),
		rotary_dim:      C.int32_t(config.RotaryDim),
		rotary_offset:   C.int32_t(config.RotaryOffset),
		theta:           C.double(config.Theta),
		attention_scale: C.double(config.AttentionScale),
		num_axes:        C.int32_t(config.NumAxes),
		pair_block:      C.int32_t(config.PairBlock),
		num_threads:     C.int32_t(config.NumThreads),
		out_style:       C.rope_style_t(config.OutStyle),
	}
	var text errorText
	desc := &Desc{device: config.Device}
	status := C.rope_go_desc_create(&c, (*C.double)(first(config.InvFreq)), (*C.int32_t)(first(config.PairAxis)),
		&desc.desc, text.pointer(), text.size())
	if err := text.of(status); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(desc, (*Desc).Close)
	return desc, nil
}

// Close frees the descriptor; later calls on it are refused. Not during a call. Without Close, the garbage collector
// frees it some day. Work on a stream outlives it.
func (d *Desc) Close() {
	C.rope_desc_destroy(d.desc)
	d.desc = nil
	runtime.SetFinalizer(d, nil)
}

// Args is rope_args_t, and the stream. Q is required; an absent output means in place.
type Args struct {
	Flags                     uint32
	Q, QOut, K, KOut, V, VOut Tensor
	Positions                 Tensor // the zero Tensor: a token's index in its sequence
	StartPositions            Tensor
	CuSeqlens                 Tensor
	Cos, Sin, Angles          Tensor
	Fault                     Tensor // I64 [2]
	PositionOffset            int64
	TableRows                 TableRows
	Stream                    uintptr // a cudaStream_t; 0 is the legacy default stream, and what the CPU takes
}

// operands of a call: the C views, without their memory, and the memory.
type operands struct {
	views     []*C.rope_tensor_t
	hosts     [13]unsafe.Pointer
	addresses [13]C.uint64_t
}

func (o *operands) add(call string, field string, device Device, tensor *Tensor, view *C.rope_tensor_t) error {
	at := len(o.views)
	host, address, err := tensor.fill(call, field, device, view)
	o.views = append(o.views, view)
	o.hosts[at], o.addresses[at] = host, C.uint64_t(address)
	return err
}

func (d *Desc) operands(call string, args *Args) (*C.rope_args_t, *operands, error) {
	c := &C.rope_args_t{
		struct_size:     C.sizeof_rope_args_t,
		flags:           C.uint32_t(args.Flags),
		position_offset: C.int64_t(args.PositionOffset),
		table_rows:      C.int32_t(args.TableRows),
	}
	o := &operands{}
	for _, operand := range []struct {
		field  string
		tensor *Tensor
		view   *C.rope_tensor_t
	}{
		{"q", &args.Q, &c.q}, {"q_out", &args.QOut, &c.q_out},
		{"k", &args.K, &c.k}, {"k_out", &args.KOut, &c.k_out},
		{"v", &args.V, &c.v}, {"v_out", &args.VOut, &c.v_out},
		{"positions", &args.Positions, &c.positions},
		{"start_positions", &args.StartPositions, &c.start_positions},
		{"cu_seqlens", &args.CuSeqlens, &c.cu_seqlens},
		{"cos", &args.Cos, &c.cos}, {"sin", &args.Sin, &c.sin}, {"angles", &args.Angles, &c.angles},
		{"fault", &args.Fault, &c.fault},
	} {
		if err := o.add(call, operand.field, d.device, operand.tensor, operand.view); err != nil {
			return nil, nil, err
		}
	}
	return c, o, nil
}

func (d *Desc) rotate(direction C.int, call string, args *Args) error {
	c, o, err := d.operands(call, args)
	if err != nil {
		return err
	}
	var text errorText
	h := &o.hosts
	status := C.rope_go_rotate(direction, d.desc, c, &o.addresses[0], h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7],
		h[8], h[9], h[10], h[11], h[12], C.uint64_t(args.Stream), text.pointer(), text.size())
	runtime.KeepAlive(d)
	return text.of(status)
}

// Forward rotates Q, and K and V where given. On the CPU the tensors are written when it returns; on CUDA the work is
// on the stream, and the memory must stay as it is until the stream has done it.
func (d *Desc) Forward(args Args) error { return d.rotate(C.ROPE_GO_FORWARD, "rope_forward", &args) }

// Backward is the transpose: Q holds gradients of the outputs, QOut receives those of the inputs.
func (d *Desc) Backward(args Args) error { return d.rotate(C.ROPE_GO_BACKWARD, "rope_backward", &args) }

// Explain says how a call would run: kernel, vector width, grid, bytes moved.
func (d *Desc) Explain(args Args) (string, error) {
	c, o, err := d.operands("rope_explain", &args)
	if err != nil {
		return "", err
	}
	var text errorText
	h := &o.hosts
	status := C.rope_go_explain(d.desc, c, &o.addresses[0], h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9],
		h[10], h[11], h[12], text.pointer(), text.size())
	runtime.KeepAlive(d)
	if err := text.of(status); err != nil {
		return "", err
	}
	return C.GoString(text.pointer()), nil
}

// FillTables writes cos and sin at positions 0 to M - 1.
func (d *Desc) FillTables(cos, sin Tensor, stream uintptr) error {
	var c [2]C.rope_tensor_t
	o := &operands{}
	for i, operand := range []struct {
		field  string
		tensor *Tensor
	}{{"cos_out", &cos}, {"sin_out", &sin}} {
		if err := o.add("rope_fill_tables", operand.field, d.device, operand.tensor, &c[i]); err != nil {
			return err
		}
	}
	var text errorText
	status := C.rope_go_fill_tables(d.desc, &c[0], &c[1], &o.addresses[0], o.hosts[0], o.hosts[1], C.uint64_t(stream),
		text.pointer(), text.size())
	runtime.KeepAlive(d)
	return text.of(status)
}
