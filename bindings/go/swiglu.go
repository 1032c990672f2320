// SPDX-License-Identifier: Apache-2.0

package rope

// #include "shim.h"
import "C"

import "runtime"

// SwigluConfig is swiglu_config_t. Device and Dtype are required.
type SwigluConfig struct {
	Device      Device
	DeviceIndex int32
	Dtype       Dtype
	NumThreads  int32   // CPU; 0: as many processors as the thread may run on
	Alpha       float64 // factor inside the sigmoid; 0 stands for 1
	Limit       float64 // gate at most Limit, up within +-Limit; 0: none
	UpOffset    float64
	OutScale    float64 // 0 stands for 1

	Activation      Activation // other than ActivationSwiglu with Alpha 0 or 1
	GateSoftcap     float64    // the gate outside the sigmoid becomes cap * tanh(gate / cap); 0: no cap
	UpSoftcap       float64    // cap of up, likewise
	LimitRule       LimitRule
	ProductRounding int32 // ProductRoundActivation: the activation is rounded to a Dtype of 16 bits before the product
	QuantRounding   int32 // QuantRoundFirst, or 0
}

// Swiglu is a gating: device, type and numbers.
type Swiglu struct {
	desc   *C.swiglu_desc_t
	device Device
}

// NewSwiglu checks the config and loads everything that calls need.
func NewSwiglu(config SwigluConfig) (*Swiglu, error) {
	c := C.swiglu_config_t{
		struct_size:  C.sizeof_swiglu_config_t,
		device:       C.rope_device_t(config.Device),
		device_index: C.int32_t(config.DeviceIndex),
		dtype:        C.rope_dtype_t(config.Dtype),
		num_threads:  C.int32_t(config.NumThreads),
		alpha:        C.double(config.Alpha),
		limit:        C.double(config.Limit),
		up_offset:    C.double(config.UpOffset),
		out_scale:    C.double(config.OutScale),

		activation:       C.int32_t(config.Activation),
		gate_softcap:     C.double(config.GateSoftcap),
		up_softcap:       C.double(config.UpSoftcap),
		limit_rule:       C.int32_t(config.LimitRule),
		product_rounding: C.int32_t(config.ProductRounding),
		quant_rounding:   C.int32_t(config.QuantRounding),
	}
	var text errorText
	swiglu := &Swiglu{device: config.Device}
	if err := text.of(C.rope_go_swiglu_create(&c, &swiglu.desc, text.pointer(), text.size())); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(swiglu, (*Swiglu).Close)
	return swiglu, nil
}

// Close frees the descriptor, like Desc.Close.
func (s *Swiglu) Close() {
	C.swiglu_desc_destroy(s.desc)
	s.desc = nil
	runtime.SetFinalizer(s, nil)
}

// SwigluQuant is swiglu_quant_args_t: scales of an output of 8 or 4 bits, or of gradients of 8 bits, whose codes are
// x / scale.
type SwigluQuant struct {
	Flags uint32 // those of Quant
	// For written scales: lower bound of a group's largest magnitude; 0: 1e-10 for F32, else none
	ScaleFloor float64
	// F32 [1], or [E] with experts, above 0; the zero Tensor: 1. With a ScalesOut of F8E4M3 it is the global factor g
	// of those scales, as a rule 448 * 6 / (largest magnitude of the whole tensor).
	Scale Tensor
	// Written instead, F32 or F8E8M0: the first axes of Gate (at least one, with experts two, and not all), then G,
	// which may be split, [.., G/4, 4]. The scale of each of G groups of neighbouring channels of Gate's other axes is
	// (largest magnitude) / (largest number of Out's type). MXFP8 and MXFP4 have groups of 32 channels with scales of
	// F8E8M0.
	//
	// With an Out of F4E2M1X2 also F8E4M3 (NVFP4, groups of 16): the scale is g * ((largest magnitude) / 6), and codes
	// are x * (g / scale), with the factor g of Scale.
	ScalesOut   Tensor
	AmaxOut     Tensor // F32 [1]: raised to the largest magnitude that becomes 8 or 4 bits
	ScaleLayout ScaleLayout
	// Backward: those of gradients of 8 bits, as ScalesOut is those of Out
	GradGateScalesOut, GradUpScalesOut Tensor
}

// SwigluColumn is swiglu_column_args_t: the outputs once more as codes of 8 bits, with scales of groups of neighbouring
// rows.
type SwigluColumn struct {
	Flags       uint32  // QuantPowerOfTwo or 0
	ScaleFloor  float64 // as that of SwigluQuant, of the scales here
	ScaleLayout ScaleLayout
	AmaxOut     Tensor // F32 [1]: raised to the largest magnitude of what becomes codes here
	Out         Tensor // forward: of Gate's shape
	GradGate    Tensor // backward
	GradUp      Tensor
	// Written, F32 or F8E8M0: Gate's shape with G instead of the rows, which are the first axis, with ExpertRows the
	// second one; the zero Tensor: the codes have SwigluQuant's Scale
	ScalesOut, GradGateScalesOut, GradUpScalesOut Tensor
}

// SwigluArgs is swiglu_args_t, its groups, and the stream. An output may be exactly one of the inputs.
type SwigluArgs struct {
	Flags    uint32
	Gate, Up Tensor
	// Forward: required without Column.Out, of Gate's shape, and of the config's Dtype, of 8 bits, or of F4E2M1X2 with
	// half of Gate's last axis. Backward: the output again
	Out          Tensor
	RowScale     Tensor
	NumRows      Tensor
	GradOut      Tensor // backward: required
	GradGate     Tensor // backward: computed if given, at least one of the three or of Column; the first two may have 8 bits
	GradUp       Tensor
	GradRowScale Tensor
	GateBias     Tensor // [d], or [E, d] with experts; added before the activation
	UpBias       Tensor
	ExpertRows   Tensor // I32 or I64 [E], with Gate [E, N, .., d]: rows of each expert; not together with NumRows
	// I32 or I64 [E + 1], with Gate [N, .., d]: expert e has rows ExpertOffsets[e] to ExpertOffsets[e + 1] - 1; not
	// together with NumRows or ExpertRows
	ExpertOffsets Tensor
	// I32 or I64 [N], with RowScale [M]: row i takes RowScale[RowIndex[i]], and is left out if there is no such entry;
	// GradRowScale is then [N]
	RowIndex Tensor
	Quant    *SwigluQuant  // nil: nothing is scaled
	Column   *SwigluColumn // nil: no further outputs
	Stream   uintptr       // a cudaStream_t; 0 is the legacy default stream, and what the CPU takes
}

func (s *Swiglu) gate(direction C.int, call string, args *SwigluArgs, text *errorText) error {
	c := &C.swiglu_args_t{struct_size: C.sizeof_swiglu_args_t, flags: C.uint32_t(args.Flags)}
	input := &C.swiglu_input_args_t{struct_size: C.sizeof_swiglu_input_args_t}
	o := &operands{}
	err := o.add(call, s.device, 0, []operand{
		{"gate", &args.Gate, &c.gate}, {"up", &args.Up, &c.up}, {"out", &args.Out, &c.out},
		{"row_scale", &args.RowScale, &c.row_scale}, {"num_rows", &args.NumRows, &c.num_rows},
		{"grad_out", &args.GradOut, &c.grad_out}, {"grad_gate", &args.GradGate, &c.grad_gate},
		{"grad_up", &args.GradUp, &c.grad_up}, {"grad_row_scale", &args.GradRowScale, &c.grad_row_scale},
		{"gate_bias", &args.GateBias, &input.gate_bias}, {"up_bias", &args.UpBias, &input.up_bias},
		{"expert_rows", &args.ExpertRows, &input.expert_rows},
		{"expert_offsets", &args.ExpertOffsets, &input.expert_offsets},
		{"row_index", &args.RowIndex, &input.row_index},
	})
	if err != nil {
		return err
	}
	var quant *C.swiglu_quant_args_t
	if n := args.Quant; n != nil {
		quant = &C.swiglu_quant_args_t{
			struct_size:  C.sizeof_swiglu_quant_args_t,
			flags:        C.uint32_t(n.Flags),
			scale_floor:  C.double(n.ScaleFloor),
			scale_layout: C.int32_t(n.ScaleLayout),
		}
		err := o.add(call, s.device, 14, []operand{
			{"quant.scale", &n.Scale, &quant.scale}, {"quant.scales_out", &n.ScalesOut, &quant.scales_out},
			{"quant.amax_out", &n.AmaxOut, &quant.amax_out},
			{"quant.grad_gate_scales_out", &n.GradGateScalesOut, &quant.grad_gate_scales_out},
			{"quant.grad_up_scales_out", &n.GradUpScalesOut, &quant.grad_up_scales_out},
		})
		if err != nil {
			return err
		}
	}
	var column *C.swiglu_column_args_t
	if n := args.Column; n != nil {
		column = &C.swiglu_column_args_t{
			struct_size:  C.sizeof_swiglu_column_args_t,
			flags:        C.uint32_t(n.Flags),
			scale_floor:  C.double(n.ScaleFloor),
			scale_layout: C.int32_t(n.ScaleLayout),
		}
		err := o.add(call, s.device, 19, []operand{
			{"column.amax_out", &n.AmaxOut, &column.amax_out}, {"column.out", &n.Out, &column.out},
			{"column.grad_gate", &n.GradGate, &column.grad_gate}, {"column.grad_up", &n.GradUp, &column.grad_up},
			{"column.scales_out", &n.ScalesOut, &column.scales_out},
			{"column.grad_gate_scales_out", &n.GradGateScalesOut, &column.grad_gate_scales_out},
			{"column.grad_up_scales_out", &n.GradUpScalesOut, &column.grad_up_scales_out},
		})
		if err != nil {
			return err
		}
	}
	h := &o.hosts
	status := C.rope_go_gate(direction, s.desc, c, quant, input, column, &o.addresses[0], h[0], h[1], h[2], h[3], h[4],
		h[5], h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15], h[16], h[17], h[18], h[19], h[20],
		h[21], h[22], h[23], h[24], h[25],
		C.uint64_t(args.Stream), text.pointer(), text.size())
	runtime.KeepAlive(s)
	return text.of(status)
}

// Forward writes Out. On the CPU it is written when the call returns; on CUDA the work is on the stream.
func (s *Swiglu) Forward(args SwigluArgs) error {
	return s.gate(C.ROPE_GO_FORWARD, "swiglu_forward", &args, &errorText{})
}

// Backward writes the gradients that are given.
func (s *Swiglu) Backward(args SwigluArgs) error {
	return s.gate(C.ROPE_GO_BACKWARD, "swiglu_backward", &args, &errorText{})
}

// Explain describes how a call would run (Backward if GradOut is given): kernel, vector width, grid, bytes moved.
func (s *Swiglu) Explain(args SwigluArgs) (string, error) {
	var text errorText
	if err := s.gate(C.ROPE_GO_EXPLAIN, "swiglu_explain", &args, &text); err != nil {
		return "", err
	}
	return C.GoString(text.pointer()), nil
}
