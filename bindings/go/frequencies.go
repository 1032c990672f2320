// SPDX-License-Identifier: Apache-2.0

package rope

// #include "shim.h"
import "C"

// ScalingType is rope_scaling_type_t: a published recipe for longer contexts. <rope/rope.h> has the formulas.
type ScalingType int32

const (
	ScalingNone            ScalingType = C.ROPE_SCALING_NONE
	ScalingLinear          ScalingType = C.ROPE_SCALING_LINEAR
	ScalingDynamicNtk      ScalingType = C.ROPE_SCALING_DYNAMIC_NTK
	ScalingDynamicNtkFixed ScalingType = C.ROPE_SCALING_DYNAMIC_NTK_FIXED
	ScalingNtkAlpha        ScalingType = C.ROPE_SCALING_NTK_ALPHA
	ScalingNtkFixed        ScalingType = C.ROPE_SCALING_NTK_FIXED
	ScalingNtkMixed        ScalingType = C.ROPE_SCALING_NTK_MIXED
	ScalingYarn            ScalingType = C.ROPE_SCALING_YARN
	ScalingYarnLog         ScalingType = C.ROPE_SCALING_YARN_LOG
	ScalingLlama3          ScalingType = C.ROPE_SCALING_LLAMA3
	ScalingLongrope        ScalingType = C.ROPE_SCALING_LONGROPE
	ScalingProportional    ScalingType = C.ROPE_SCALING_PROPORTIONAL
	ScalingFactors         ScalingType = C.ROPE_SCALING_FACTORS
)

// Scaling is rope_scaling_t: a recipe and its parameters. A parameter that the recipe does not use must be zero. The
// three arrays have a factor for each pair.
type Scaling struct {
	Type                ScalingType
	Factor              float64
	OriginalMaxPosition int64
	SequenceLength      int64
	Alpha               float64
	MixedB              float64
	BetaFast            float64
	BetaSlow            float64
	AttentionFactor     float64
	Mscale              float64
	MscaleAllDim        float64
	LowFreqFactor       float64
	HighFreqFactor      float64
	PartialRotaryFactor float64
	ShortFactor         []float64
	LongFactor          []float64
	PairFactors         []float64
	NoTruncate          bool // ROPE_SCALING_FLAG_NO_TRUNCATE
}

// pairArrayLength returns the length of an array with an entry for each pair of rotaryDim channels. It is 1 for a
// rotaryDim out of range: the library refuses this value, and writes nothing, but needs a pointer.
func pairArrayLength(rotaryDim int32) int32 {
	const maxRotaryDim = 1024
	if rotaryDim < 2 || rotaryDim > maxRotaryDim {
		return 1
	}
	return rotaryDim / 2
}

// ScaledFrequencies returns the rotaryDim/2 frequencies of a recipe, in radians per position, and its factor of cos and
// sin: Config's InvFreq and AttentionScale. theta is the base of the frequencies.
func ScaledFrequencies(rotaryDim int32, theta float64, scaling Scaling) (invFreq []float64, attentionScale float64,
	err error) {
	factors := 0
	for _, array := range [][]float64{scaling.ShortFactor, scaling.LongFactor, scaling.PairFactors} {
		if factors != 0 && len(array) != 0 && len(array) != factors {
			return nil, 0, invalid("rope_scaled_frequencies: one array has %d factors and another %d: they must have "+
				"as many", factors, len(array))
		}
		if len(array) > factors {
			factors = len(array)
		}
	}
	c := C.rope_scaling_t{
		struct_size:           C.sizeof_rope_scaling_t,
		_type:                 C.rope_scaling_type_t(scaling.Type),
		num_factors:           C.int32_t(factors),
		factor:                C.double(scaling.Factor),
		original_max_position: C.int64_t(scaling.OriginalMaxPosition),
		sequence_length:       C.int64_t(scaling.SequenceLength),
		alpha:                 C.double(scaling.Alpha),
		mixed_b:               C.double(scaling.MixedB),
		beta_fast:             C.double(scaling.BetaFast),
		beta_slow:             C.double(scaling.BetaSlow),
		attention_factor:      C.double(scaling.AttentionFactor),
		mscale:                C.double(scaling.Mscale),
		mscale_all_dim:        C.double(scaling.MscaleAllDim),
		low_freq_factor:       C.double(scaling.LowFreqFactor),
		high_freq_factor:      C.double(scaling.HighFreqFactor),
		partial_rotary_factor: C.double(scaling.PartialRotaryFactor),
	}
	if scaling.NoTruncate {
		c.flags = C.ROPE_SCALING_FLAG_NO_TRUNCATE
	}
	var text errorText
	var scale C.double
	invFreq = make([]float64, pairArrayLength(rotaryDim))
	status := C.rope_go_scaled_frequencies(C.int32_t(rotaryDim), C.double(theta), &c,
		(*C.double)(first(scaling.ShortFactor)), (*C.double)(first(scaling.LongFactor)),
		(*C.double)(first(scaling.PairFactors)), (*C.double)(first(invFreq)), &scale, text.pointer(), text.size())
	if err := text.of(status); err != nil {
		return nil, 0, err
	}
	return invFreq, float64(scale), nil
}

// SectionsType is rope_sections_type_t: the rule that reads the section list of a model with several position axes.
type SectionsType int32

const (
	SectionsChunked     SectionsType = C.ROPE_SECTIONS_CHUNKED
	SectionsInterleaved SectionsType = C.ROPE_SECTIONS_INTERLEAVED
	SectionsImrope      SectionsType = C.ROPE_SECTIONS_IMROPE
	SectionsErnie       SectionsType = C.ROPE_SECTIONS_ERNIE
	SectionsRestarted   SectionsType = C.ROPE_SECTIONS_RESTARTED
	SectionsVision      SectionsType = C.ROPE_SECTIONS_VISION
)

// SectionAxes returns the position axis that turns each pair, and the pair's frequency in radians per position:
// Config's PairAxis and InvFreq. sections has lengths in pairs.
func SectionAxes(rotaryDim int32, theta float64, sectionsType SectionsType, sections ...int32) (pairAxis []int32,
	invFreq []float64, err error) {
	c := C.rope_sections_t{
		struct_size:  C.sizeof_rope_sections_t,
		_type:        C.rope_sections_type_t(sectionsType),
		num_sections: C.int32_t(len(sections)), // the library refuses too many
	}
	for i := range c.section {
		if i < len(sections) {
			c.section[i] = C.int32_t(sections[i])
		}
	}
	var text errorText
	pairAxis = make([]int32, pairArrayLength(rotaryDim))
	invFreq = make([]float64, pairArrayLength(rotaryDim))
	status := C.rope_go_section_axes(C.int32_t(rotaryDim), C.double(theta), &c, (*C.int32_t)(first(pairAxis)),
		(*C.double)(first(invFreq)), text.pointer(), text.size())
	if err := text.of(status); err != nil {
		return nil, nil, err
	}
	return pairAxis, invFreq, nil
}
