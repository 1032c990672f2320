// exact_arithmetic.hpp - refuses the compilers' flags that would change results
//
// CMakeLists.txt takes such flags back. This is for other ways to compile; flags that no macro shows pass.
#pragma once

#if defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || \
    defined(__NO_SIGNED_ZEROS__)
#error "librope's results take arithmetic as IEC 60559 has it: compile it with -fno-fast-math after other flags"
#endif
