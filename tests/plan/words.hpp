// SPDX-License-Identifier: Apache-2.0
// words.hpp - reads a RoPE problem from a line of words, for tables of expected plans
#ifndef ROPE_TESTS_PLAN_WORDS_HPP
#define ROPE_TESTS_PLAN_WORDS_HPP

#include <string>

#include "plan/scene.hpp"

// Each word has a default: 132 multiprocessors of compute capability 9.0, BSHD, one batch of 64 tokens with 8 heads of
// 128 channels, all rotated, HALF, BF16, in place, computed angles.
//
//   sm=N cc=N bus=N                the device: multiprocessors, compute capability, bits of the memory's bus
//   bshd sbhd bhsd thd             the layout
//   b=N t=N h=Q+K+V d=N rot=N off=N block=N axes=N
//   half interleaved to-half to-interleaved
//   f32 f16 bf16 f64
//   out out-q out-k                out of place: all, or q or k alone
//   table=TYPE width=N by-token    cosines and sines: 4096 rows, or one for each token, of N columns, or one a pair
//   angles                         a table of angles
//   positions=i32 positions=i64 starts seq=N fault pdl
//
// followed by changes of the problem: NAME=N or NAME+N, where NAME is one of
//   q.in.AXIS q.out.AXIS q.AXIS    strides of the first tensor (k, v: of the others), of its output, of both
//   cos.row cos.column cos.batch   strides of a table, so for sin, and `table.` for both; cos.data in bytes
//   positions.token positions.batch seq.count rows
rope::DeviceInfo read_words(const std::string &line, Scene *scene);

#endif
