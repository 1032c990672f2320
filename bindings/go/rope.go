// SPDX-License-Identifier: Apache-2.0

// Package rope is librope from Go: rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and
// NVIDIA GPUs.
//
// A Desc or Swiglu holds what selects code and never changes; any number of goroutines may use one at once. Calls take
// tensors: slices for the CPU, addresses for a device. Nothing is copied, and packed tensors are several tensors over
// one slice. <rope/rope.h> is the manual of every field. A field that is left zero counts as not given, as in C.
//
// examples/decode_step is a complete program.
//
// A module of your own gets the package by go get github.com/librope/librope/bindings/go, or names it in its go.mod by
// the path of a checkout,
//
//	require github.com/librope/librope/bindings/go v0.0.0
//	replace github.com/librope/librope/bindings/go => ./librope/bindings/go
//
// and imports it as rope. cgo gets the library's place from pkg-config. For a library outside the system's folders set
// PKG_CONFIG_PATH to build, and LD_LIBRARY_PATH, or an rpath in CGO_LDFLAGS, to run.
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
	OutOfMemory     Status = C.ROPE_STATUS_OUT_OF_MEMORY    // the host is out of memory
	NoDevice        Status = C.ROPE_STATUS_NO_DEVICE        // no driver, none visible, or none that this code runs on
	CudaError       Status = C.ROPE_STATUS_CUDA_ERROR       // the CUDA runtime refused; the text contains its message
	InternalError   Status = C.ROPE_STATUS_INTERNAL_ERROR   // a bug in librope: please report the text
)

func (s Status) String() string { return C.GoString(C.rope_status_name(C.rope_status_t(s))) }

// Error is the text of a refused call: function, field, value and rule.
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

// Style selects the channels of the rotated window that form a pair.
type Style int32

const (
	Half        Style = C.ROPE_STYLE_HALF        // channels i and i + R/2: Llama in Hugging Face, GPT-NeoX, Qwen
	Interleaved Style = C.ROPE_STYLE_INTERLEAVED // channels 2i and 2i + 1: GPT-J, Llama by Meta, DeepSeek
)

// TableRows selects how a token finds its row of cos, sin and angles.
type TableRows int32

const (
	TableByPosition TableRows = C.ROPE_TABLE_BY_POSITION
	TableByToken    TableRows = C.ROPE_TABLE_BY_TOKEN
)

// NormType selects the formula of a norm.
type NormType int32

const (
	NormRMS   NormType = C.ROPE_NORM_RMS
	NormLayer NormType = C.ROPE_NORM_LAYER
)

// NormOrder selects whether the norm comes before the rotation or after it.
type NormOrder int32

const (
	NormBefore NormOrder = C.ROPE_NORM_ORDER_BEFORE // Qwen3, Gemma 3
	NormAfter  NormOrder = C.ROPE_NORM_ORDER_AFTER  // Llama 4, HunYuan
)

// NormExtent selects the channels of one norm.
type NormExtent int32

const (
	NormOfHead  NormExtent = C.ROPE_NORM_EXTENT_HEAD
	NormOfToken NormExtent = C.ROPE_NORM_EXTENT_TOKEN // all heads of the tensor in the call: OLMo-2
)

// Bits of Config.NormTensors
const (
	NormQ int32 = C.ROPE_NORM_TENSOR_Q
	NormK int32 = C.ROPE_NORM_TENSOR_K
	NormV int32 = C.ROPE_NORM_TENSOR_V // without weight and bias
)

// Bits of Config.NormRounding
const (
	NormRoundBeforeWeight int32 = C.ROPE_NORM_ROUND_BEFORE_WEIGHT
	NormRoundAfterWeight  int32 = C.ROPE_NORM_ROUND_AFTER_WEIGHT
)

// QuantRoundFirst is a bit of QuantRounding in Config and SwigluConfig: values are rounded to Dtype before they are
// scaled and quantised.
const QuantRoundFirst int32 = C.ROPE_QUANT_ROUND_FIRST

// RotationRoundEach is a value of Config.RotationRounding: cos, sin, products and sums of the rotation are rounded to
// Dtype one by one.
const RotationRoundEach int32 = C.ROPE_ROTATION_ROUND_EACH

// Activation selects the function of the gate.
type Activation int32

const (
	ActivationSwiglu    Activation = C.SWIGLU_ACTIVATION_SWIGLU
	ActivationGegluErf  Activation = C.SWIGLU_ACTIVATION_GEGLU_ERF
	ActivationGegluTanh Activation = C.SWIGLU_ACTIVATION_GEGLU_TANH // Gemma
	ActivationReglu     Activation = C.SWIGLU_ACTIVATION_REGLU
)

// LimitRule selects the value that SwigluConfig.Limit bounds from above, in addition to up.
type LimitRule int32

const (
	LimitGate       LimitRule = C.SWIGLU_LIMIT_GATE       // before the activation: gpt-oss
	LimitActivation LimitRule = C.SWIGLU_LIMIT_ACTIVATION // Step 3.7
)

// ScaleLayout selects the places of SwiGLU's written scales: by their strides, or in tiles of 128 rows and 4 groups.
type ScaleLayout int32

const (
	ScaleLayoutStrided ScaleLayout = C.SWIGLU_SCALE_LAYOUT_STRIDED
	ScaleLayout128x4   ScaleLayout = C.SWIGLU_SCALE_LAYOUT_128X4
)

// ProductRoundActivation is a value of SwigluConfig.ProductRounding.
const ProductRoundActivation int32 = C.SWIGLU_PRODUCT_ROUND_ACTIVATION

// Flags of calls
const (
	ProgrammaticLaunch uint32 = C.ROPE_FLAG_PROGRAMMATIC_LAUNCH
	Unrotated          uint32 = C.ROPE_FLAG_UNROTATED   // of a Desc: nothing is rotated
	VUnrotated         uint32 = C.ROPE_FLAG_V_UNROTATED // of a Desc: v is not rotated, q and k are
	Accumulate         uint32 = C.ROPE_FLAG_ACCUMULATE  // of Desc.Backward: gradients are added to their outputs
)

// CacheSkipSlot0 is a flag of Cache: slot 0 is not written.
const CacheSkipSlot0 uint32 = C.ROPE_CACHE_FLAG_SKIP_SLOT_0

// Flags of Quant and SwigluQuant
const (
	// Codes are x * scale, as in flashinfer, TensorRT-LLM and TransformerEngine; not for written scales.
	QuantScaleMultiplies uint32 = C.ROPE_QUANT_FLAG_SCALE_MULTIPLIES
	// Written F32 scales are rounded up to powers of two, as those of F8E8M0 always are.
	QuantPowerOfTwo uint32 = C.ROPE_QUANT_FLAG_POWER_OF_TWO
)

// Version returns the version of the loaded library: major * 10000 + minor * 100 + patch.
func Version() uint32 { return uint32(C.rope_version()) }

// BuildInfo returns one line for bug reports.
func BuildInfo() string { return C.GoString(C.rope_build_info()) }

// DeviceCount returns how many devices of a kind this process can use, and if there are none, the reason.
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
	AttentionScale float64 // 0 stands for 1
	InvFreq        []float64
	PairAxis       []int32
	NumAxes        int32 // 0 stands for 1
	PairBlock      int32 // 0: RotaryDim
	NumThreads     int32 // CPU; 0: as many processors as the thread may run on
	OutStyle       Style // 0: Style

	Norm             NormType // 0: none; otherwise every call passes Args.Norm
	NormTensors      int32    // NormQ, NormK and NormV, as bits; 0: q and k
	NormOrder        NormOrder
	NormExtent       NormExtent
	NormRounding     int32 // NormRoundBeforeWeight and NormRoundAfterWeight, as bits
	NormEps          float64
	NormWeightOffset float64 // added to every weight; Gemma: 1

	QuantRounding int32 // QuantRoundFirst, or 0

	RotationRounding int32 // RotationRoundEach, or 0
}

// Desc is a rotation: device, type, layout, geometry and frequencies.
type Desc struct {
	desc   *C.rope_desc_t
	device Device
}

// NewDesc checks the config and loads everything that calls need.
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

		norm:               C.rope_norm_type_t(config.Norm),
		norm_tensors:       C.int32_t(config.NormTensors),
		norm_order:         C.rope_norm_order_t(config.NormOrder),
		norm_extent:        C.rope_norm_extent_t(config.NormExtent),
		norm_rounding:      C.int32_t(config.NormRounding),
		norm_eps:           C.double(config.NormEps),
		norm_weight_offset: C.double(config.NormWeightOffset),
		quant_rounding:     C.int32_t(config.QuantRounding),
		rotation_rounding:  C.int32_t(config.RotationRounding),
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

// Close frees the descriptor; later calls on it are refused. It must not run during a call. Without Close, the garbage
// collector frees the descriptor at some time. Work on a stream outlives it.
func (d *Desc) Close() {
	C.rope_desc_destroy(d.desc)
	d.desc = nil
	runtime.SetFinalizer(d, nil)
}

// Args is rope_args_t, and the stream. Q, K and V are each optional, but at least one is required. An absent output
// means in place, or, if Cache has the cache of K or V, cached only.
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
	Norm                      *Norm   // if and only if there is a Config.Norm
	Cache                     *Cache  // nil: no cache is written
	Quant                     *Quant  // nil: nothing is scaled
	Input                     *Input  // nil: no row factors
	Stream                    uintptr // a cudaStream_t; 0 is the legacy default stream, and what the CPU takes
}

// Norm is rope_norm_args_t: [D], or [H, D] with a weight for each head.
type Norm struct {
	QWeight, KWeight Tensor // the zero Tensor: 1
	QBias, KBias     Tensor // NormLayer
	// Backward: the inputs of Forward, for tensors that are normed
	QIn, KIn, VIn Tensor
	// Backward: rows [N, D] or [N, H, D] of F32 (F64: F64), to which the sums of N runs of tokens are added; the zero
	// Tensor: not computed
	GradQWeight, GradKWeight Tensor
	GradQBias, GradKBias     Tensor // NormLayer
}

// Cache is rope_cache_args_t: paged caches [pages, entries, heads, channels] of any strides, and each token's place in
// them, by Slots or by PageTable.
type Cache struct {
	Flags          uint32
	KCache, VCache Tensor
	// The channels of k outside the window, in a type of their own, [pages, entries, heads, D - R]; KCache then holds the
	// window alone, R channels.
	KPassCache Tensor
	// [pages, entries, heads, G]: scales of caches of 8 bits, written as Quant's are for outputs
	KScales, VScales, KPassScales Tensor
	Slots                         Tensor // I32 or I64 [T], or [N] for the first N tokens, or [B, S]: page * entries + entry
	PageTable                     Tensor // I32 or I64 [B, any]: pages of each sequence; with PageIndptr one list for all
	PageIndptr                    Tensor // I32 or I64 [B + 1]
	Sequence                      Tensor // the row of PageTable of each token; the zero Tensor: its batch or sequence
	Positions                     Tensor // in the cache; the zero Tensor: those of the rotation
}

// Quant is rope_quant_args_t: scales of outputs and caches of 8 bits. A code is x / scale.
type Quant struct {
	Flags uint32
	// For written scales: lower bound of a group's largest magnitude; 0: 1e-10 for F32, else none
	ScaleFloor float64
	// F32 [1], or [H] with a scale for each head, above 0; the zero Tensor: 1
	QScale, KScale, VScale Tensor
	KPassScale             Tensor // of Cache.KPassCache
	// Written instead, F32 or F8E8M0: the axes of the output with G instead of its channels, or [T, H, G/4, 4]. The scale
	// of each of G groups of neighbouring channels is (largest magnitude) / (largest number of the output's type).
	QScalesOut, KScalesOut, VScalesOut Tensor
	AmaxOut                            Tensor // F32 [3], of q, k and v: raised to the largest magnitude that is scaled
}

// Input is rope_input_args_t.
type Input struct {
	// The channels of q outside the window, those before it, then those behind it: the axes of Q with D - R channels. Q
	// then holds the window alone, R channels, and QOut, which is required, has D. Heads may share the channels, with a
	// stride of 0. K and KPass work alike; K needs KOut or a KCache. In Forward only.
	QPass, KPass Tensor
	// Factors of rows, which multiply all channels. F32 or Config.Dtype: one for each token, [S], [B, S] or [T], or for
	// each token and head, with an axis H behind these; the zero Tensor: 1. In Backward too.
	QRowFactor, KRowFactor, VRowFactor Tensor
}

const maxOperands = 48 // of rope_args_t and its groups

// operands is the memory of a call's tensors. The shim puts it into the views, on the C stack: a struct that crosses
// into C may hold Go pointers only if they are pinned, which requires Go 1.21.
type operands struct {
	hosts     [maxOperands]unsafe.Pointer
	addresses [maxOperands]C.uint64_t
}

// operand is a tensor and its C view, which has everything except the memory.
type operand struct {
	field  string
	tensor *Tensor
	view   *C.rope_tensor_t
}

// add fills the views, and stores their memory from the index `at` on.
func (o *operands) add(call string, device Device, at int, group []operand) error {
	for i, operand := range group {
		host, address, err := operand.tensor.fill(call, operand.field, device, operand.view)
		if err != nil {
			return err
		}
		o.hosts[at+i], o.addresses[at+i] = host, C.uint64_t(address)
	}
	return nil
}

func (d *Desc) rotate(direction C.int, call string, args *Args, text *errorText) error {
	c := &C.rope_args_t{
		struct_size:     C.sizeof_rope_args_t,
		flags:           C.uint32_t(args.Flags),
		position_offset: C.int64_t(args.PositionOffset),
		table_rows:      C.int32_t(args.TableRows),
	}
	o := &operands{}
	err := o.add(call, d.device, 0, []operand{
		{"q", &args.Q, &c.q}, {"q_out", &args.QOut, &c.q_out},
		{"k", &args.K, &c.k}, {"k_out", &args.KOut, &c.k_out},
		{"v", &args.V, &c.v}, {"v_out", &args.VOut, &c.v_out},
		{"positions", &args.Positions, &c.positions},
		{"start_positions", &args.StartPositions, &c.start_positions},
		{"cu_seqlens", &args.CuSeqlens, &c.cu_seqlens},
		{"cos", &args.Cos, &c.cos}, {"sin", &args.Sin, &c.sin}, {"angles", &args.Angles, &c.angles},
		{"fault", &args.Fault, &c.fault},
	})
	if err != nil {
		return err
	}
	var norm *C.rope_norm_args_t
	if n := args.Norm; n != nil {
		norm = &C.rope_norm_args_t{struct_size: C.sizeof_rope_norm_args_t}
		err := o.add(call, d.device, 13, []operand{
			{"norm.q_weight", &n.QWeight, &norm.q_weight}, {"norm.k_weight", &n.KWeight, &norm.k_weight},
			{"norm.q_bias", &n.QBias, &norm.q_bias}, {"norm.k_bias", &n.KBias, &norm.k_bias},
		})
		if err != nil {
			return err
		}
		err = o.add(call, d.device, 41, []operand{
			{"norm.q_in", &n.QIn, &norm.q_in}, {"norm.k_in", &n.KIn, &norm.k_in}, {"norm.v_in", &n.VIn, &norm.v_in},
			{"norm.grad_q_weight", &n.GradQWeight, &norm.grad_q_weight},
			{"norm.grad_k_weight", &n.GradKWeight, &norm.grad_k_weight},
			{"norm.grad_q_bias", &n.GradQBias, &norm.grad_q_bias},
			{"norm.grad_k_bias", &n.GradKBias, &norm.grad_k_bias},
		})
		if err != nil {
			return err
		}
	}
	var cache *C.rope_cache_args_t
	if n := args.Cache; n != nil {
		cache = &C.rope_cache_args_t{struct_size: C.sizeof_rope_cache_args_t, flags: C.uint32_t(n.Flags)}
		err := o.add(call, d.device, 17, []operand{
			{"cache.k_cache", &n.KCache, &cache.k_cache}, {"cache.v_cache", &n.VCache, &cache.v_cache},
			{"cache.k_pass_cache", &n.KPassCache, &cache.k_pass_cache},
			{"cache.k_scales", &n.KScales, &cache.k_scales}, {"cache.v_scales", &n.VScales, &cache.v_scales},
			{"cache.k_pass_scales", &n.KPassScales, &cache.k_pass_scales},
			{"cache.slots", &n.Slots, &cache.slots},
			{"cache.page_table", &n.PageTable, &cache.page_table},
			{"cache.page_indptr", &n.PageIndptr, &cache.page_indptr},
			{"cache.sequence", &n.Sequence, &cache.sequence},
			{"cache.positions", &n.Positions, &cache.positions},
		})
		if err != nil {
			return err
		}
	}
	var quant *C.rope_quant_args_t
	if n := args.Quant; n != nil {
		quant = &C.rope_quant_args_t{
			struct_size: C.sizeof_rope_quant_args_t,
			flags:       C.uint32_t(n.Flags),
			scale_floor: C.double(n.ScaleFloor),
		}
		err := o.add(call, d.device, 28, []operand{
			{"quant.q_scale", &n.QScale, &quant.q_scale}, {"quant.k_scale", &n.KScale, &quant.k_scale},
			{"quant.v_scale", &n.VScale, &quant.v_scale}, {"quant.k_pass_scale", &n.KPassScale, &quant.k_pass_scale},
			{"quant.q_scales_out", &n.QScalesOut, &quant.q_scales_out},
			{"quant.k_scales_out", &n.KScalesOut, &quant.k_scales_out},
			{"quant.v_scales_out", &n.VScalesOut, &quant.v_scales_out},
			{"quant.amax_out", &n.AmaxOut, &quant.amax_out},
		})
		if err != nil {
			return err
		}
	}
	var input *C.rope_input_args_t
	if n := args.Input; n != nil {
		input = &C.rope_input_args_t{struct_size: C.sizeof_rope_input_args_t}
		err := o.add(call, d.device, 36, []operand{
			{"input.q_pass", &n.QPass, &input.q_pass}, {"input.k_pass", &n.KPass, &input.k_pass},
			{"input.q_row_factor", &n.QRowFactor, &input.q_row_factor},
			{"input.k_row_factor", &n.KRowFactor, &input.k_row_factor},
			{"input.v_row_factor", &n.VRowFactor, &input.v_row_factor},
		})
		if err != nil {
			return err
		}
	}
	h := &o.hosts
	status := C.rope_go_rotate(direction, d.desc, c, norm, cache, quant, input, &o.addresses[0], h[0], h[1], h[2], h[3],
		h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15], h[16], h[17], h[18], h[19],
		h[20], h[21], h[22], h[23], h[24], h[25], h[26], h[27], h[28], h[29], h[30], h[31], h[32], h[33], h[34], h[35],
		h[36], h[37], h[38], h[39], h[40], h[41], h[42], h[43], h[44], h[45], h[46], h[47], C.uint64_t(args.Stream),
		text.pointer(), text.size())
	runtime.KeepAlive(d)
	return text.of(status)
}

// Forward rotates the given ones of Q, K and V, norms and quantises them, and writes K and V to caches, as the
// arguments specify. On the CPU the tensors are written when it returns. On CUDA the work is on the stream, and the
// memory must not change until the stream has done it.
func (d *Desc) Forward(args Args) error {
	return d.rotate(C.ROPE_GO_FORWARD, "rope_forward", &args, &errorText{})
}

// Backward is the transpose: Q holds gradients of the outputs, QOut receives those of the inputs. With a norm it
// computes the gradient of both, and Args.Norm has Forward's inputs.
func (d *Desc) Backward(args Args) error {
	return d.rotate(C.ROPE_GO_BACKWARD, "rope_backward", &args, &errorText{})
}

// Explain describes how a call would run: kernel, vector width, grid, bytes moved.
func (d *Desc) Explain(args Args) (string, error) {
	var text errorText
	if err := d.rotate(C.ROPE_GO_EXPLAIN, "rope_explain", &args, &text); err != nil {
		return "", err
	}
	return C.GoString(text.pointer()), nil
}

// FillTables writes cos and sin of positions 0 to M - 1.
func (d *Desc) FillTables(cos, sin Tensor, stream uintptr) error {
	var c [2]C.rope_tensor_t
	o := &operands{}
	err := o.add("rope_fill_tables", d.device, 0, []operand{{"cos_out", &cos, &c[0]}, {"sin_out", &sin, &c[1]}})
	if err != nil {
		return err
	}
	var text errorText
	status := C.rope_go_fill_tables(d.desc, &c[0], &c[1], &o.addresses[0], o.hosts[0], o.hosts[1], C.uint64_t(stream),
		text.pointer(), text.size())
	runtime.KeepAlive(d)
	return text.of(status)
}
