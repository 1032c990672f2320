// SPDX-License-Identifier: Apache-2.0

package abi

// shim.h is a link, because go only notices changes in a package's own folder.

/*
#include "shim.h"

// In the order of a struct, `tensors` of them from the first one on.
static void note(const rope_tensor_t *first, int tensors, uint64_t *found) {
  for (int i = 0; i < tensors; ++i) found[i] = (uint64_t)(uintptr_t)first[i].data;
}

static void note_rope(const uint64_t *addresses, uint64_t *found) {
  const rope_args_t args = {0};
  const rope_norm_args_t norm = {0};
  const rope_cache_args_t cache = {0};
  const rope_quant_args_t quant = {0};
  const rope_input_args_t input = {0};
  rope_go_operands_t whole;
  rope_go_complete(&whole, &args, &norm, &cache, &quant, &input, addresses, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, NULL);
  note(&whole.args.q, 13, found);
  note(&whole.args.norm->q_weight, 4, found + 13);
  note(&whole.args.cache->k_cache, 11, found + 17);
  note(&whole.args.quant->q_scale, 8, found + 28);
  note(&whole.args.input->q_pass, 5, found + 36);
  note(&whole.args.norm->q_in, 7, found + 41);
}

static void note_swiglu(const uint64_t *addresses, uint64_t *found) {
  const swiglu_args_t args = {0};
  const swiglu_quant_args_t quant = {0};
  const swiglu_input_args_t input = {0};
  const swiglu_column_args_t column = {0};
  rope_go_gating_t whole;
  rope_go_complete_gating(&whole, &args, &quant, &input, &column, addresses, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                          NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                          NULL, NULL, NULL);
  note(&whole.args.gate, 9, found);
  note(&whole.input.gate_bias, 5, found + 9);
  note(&whole.args.quant->scale, 3, found + 14);
  note(&whole.args.quant->grad_gate_scales_out, 2, found + 17);
  note(&whole.args.column->amax_out, 7, found + 19);
}
*/
import "C"

// OnDevice returns the addresses that the shim writes to the tensors of a call, in the order of rope_args_t or
// swiglu_args_t and their groups, followed by the norm's tensors for backward. The addresses that it passes have this
// order, too.
func OnDevice(addresses []uint64, swiglu bool) []uint64 {
	found := make([]uint64, len(addresses))
	given, taken := (*C.uint64_t)(&addresses[0]), (*C.uint64_t)(&found[0])
	if swiglu {
		C.note_swiglu(given, taken)
	} else {
		C.note_rope(given, taken)
	}
	return found
}
