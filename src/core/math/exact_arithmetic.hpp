// SPDX-License-Identifier: Apache-2.0
// exact_arithmetic.hpp - refuses -ffast-math and those of its parts that a macro shows
//
// CMakeLists.txt switches these options off again; every other build is stopped here.
#pragma once

#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__)
#error "librope's results take arithmetic as IEC 60559 has it: compile it with -fno-fast-math after other flags"
#endif
