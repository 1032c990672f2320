// SPDX-License-Identifier: Apache-2.0
// swiglu_rows_reader.hpp - checks expert_offsets, row_index and the operands that go with them
#pragma once

#include "core/problem/operands.hpp"
#include "core/problem/swiglu_rows.hpp"

namespace rope {

rope_status_t read_expert_offsets(const char *function, const rope_tensor_t &tensor, const Operand &gate,
                                  Operands *operands, SwigluRows *rows);

// row_scale was read before and has one axis.
rope_status_t read_row_index(const char *function, const rope_tensor_t &tensor, const Operand &gate,
                             const Operand *row_scale, Operands *operands, SwigluRows *rows);

}  // namespace rope
