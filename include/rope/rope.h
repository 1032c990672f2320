/* SPDX-License-Identifier: Apache-2.0 */
/* rope.h - rotary position embedding (RoPE) and SwiGLU, forward and backward, on CPUs and NVIDIA GPUs
 *
 * Sections, in this order
 *   - Version: rope_version, rope_build_info
 *   - Status: rope_status_t, rope_status_name, rope_last_error
 *   - Devices, types, layouts: rope_stream_t, rope_device_count, rope_dtype_t, rope_layout_t, rope_style_t
 *   - Tensors: rope_tensor_t, rope_tensor_narrow, rope_tensor_select
 *   - RoPE: rope_desc_t
 *   - The step (norm, rotation, row factors, cache): rope_config_t, rope_desc_create, rope_desc_destroy, rope_args_t
 *     with its norm, cache, quant and input, rope_forward, rope_backward, rope_fill_tables, rope_explain
 *   - Frequencies: rope_scaling_t, rope_scaled_frequencies (longer contexts)
 *   - Position axes: rope_sections_t, rope_section_axes (several positions for each token)
 *   - SwiGLU: swiglu_config_t, swiglu_desc_create, swiglu_desc_destroy, swiglu_args_t with its quant, column and input,
 *     swiglu_forward, swiglu_backward, swiglu_explain
 *
 * The two operations
 *   RoPE turns pairs of channels (x, y) of every head of a token by an angle that grows with the token's position:
 *       x' = x cos a - y sin a        a = position * inv_freq[pair]
 *       y' = x sin a + y cos a        (Su et al., "RoFormer", arXiv:2104.09864, eq. 15 and 34)
 *   SwiGLU gates one tensor by another:
 *       out = gate * sigmoid(gate) * up        (Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202, eq. 6)
 *
 * How a program uses it
 *   1. Fill a config struct and create a descriptor. It has the choices that select code: device, type, layout,
 *      geometry, frequencies. It never changes afterwards, and any number of threads may use it at the same time.
 *   2. Fill an args struct with views of your tensors and call forward or backward. The library never copies or
 *      reshapes a tensor, and programs need not do so either: strides express a layout, two views a packed tensor, and
 *      a tensor the positions.
 *   3. Check the returned status. rope_last_error() names the call, the field, its value and the rule that it broke.
 *
 * Structs that begin with struct_size
 *   Zero the whole struct, set struct_size = sizeof(it), then set the members that you need. Zero always means "as
 *   before this field existed", so programs built against an older header keep their meaning. A library older than your
 *   header refuses a struct, with ROPE_STATUS_NOT_SUPPORTED, if a field that the library lacks is not zero.
 *   A struct_size below that of the first release, above 4096, or inside a field is INVALID_ARGUMENT.
 *   The macro after each struct does the first two steps. It has a value for every member, so that no compiler warns:
 *       rope_config_t config = ROPE_CONFIG_INIT;        a definition, in C and C++
 *       config = (rope_config_t)ROPE_CONFIG_INIT;       an assignment, in C
 *       config = ROPE_CONFIG_INIT;                      an assignment, in C++
 *
 * The contract of rope_forward, rope_backward, swiglu_forward and swiglu_backward
 *   - A CUDA descriptor enqueues one kernel on `stream` and returns. (A call of SwiGLU with codes by column, or with
 *     gradients of 8 bits, may enqueue one for each output.) The call does not synchronise, does not allocate device
 *     memory and queries no attribute, so a CUDA graph may capture it, the first call included. The caller's current
 *     device stays the same.
 *   - A CPU descriptor takes a NULL stream and has finished when the call returns.
 *   - Any failure other than ROPE_STATUS_CUDA_ERROR means that nothing was enqueued and nothing was written.
 *   - An output is absent (in place), exactly its input, or shares no element with any other tensor of the call, and
 *     visits no element twice. The call refuses every overlap if the views in question have at most two different
 *     strides, not counting strides that leave no gap between elements. With more strides it refuses an overlap if a
 *     bounded search finds it. The result of an overlap that is not found is undefined.
 *   - The work of a call is bounded: no tensor may have more elements than the larger of 2^28 and 64 times the bytes
 *     that the tensors of the call span, each from its lowest element to its highest; more is
 *     ROPE_STATUS_NOT_SUPPORTED. (A call with an expanded input could otherwise run for years.)
 *   - A call with zero tokens, heads or rows succeeds and launches nothing; the views' data may then be NULL.
 *   - Tensors of a CUDA descriptor lie in memory that its device can access, those of a CPU descriptor in host memory.
 *     This is not checked. Configs, args and the arrays that a config points to always lie in host memory, and nothing
 *     may change them during the call: another thread that does could pass values that were never checked.
 *
 * Numbers
 *   RoPE: angles are reduced exactly at every integer position; the error of cos and sin is at most
 *     1.1e-7 + 2.3e-19 * |position| * max(1, |inv_freq|), with dtype F64 4e-16 + the same term. Products and sums are
 *     computed in fp32, with dtype F64 in fp64. Each is rounded once, none is fused, and the result is rounded to the
 *     output type once. CPU and CUDA give the same bits (NaN payloads aside), whatever the thread count, the vector
 *     width or the launch.
 *   SwiGLU: the arithmetic is fp32, with dtype F64 fp64, and the result is rounded once. Before that rounding `out` and
 *     grad_up are within 8 ulp (of that arithmetic) of the exact value. grad_gate, a sum of two terms that cancel at
 *     gate = -1.278, is within 8 ulp of its larger term. Products of some of the factors may be subnormal: allow four
 *     times the smallest number times the product of those factors that exceed 1. In grad_gate |alpha * gate| is one of
 *     them, and with GeGLU by tanh so is 1.6 + 0.214 gate^2, the slope of tanh's argument: s of very low gates is
 *     subnormal itself. Finite inputs of any size never give NaN; but where a result is beyond all numbers, and so
 *     infinite, its code may be NaN by rope_quant_args_t. GeGLU has these bounds too, except that grad_gate is within
 *     12 ulp. A soft cap adds 4 ulp, and in the gradient of the tensor x that it caps 4 * |x / cap| more. With F16 and
 *     BF16 data, a result that contains GeGLU, a soft cap or a limit of the activation may have a further error of
 *     2^-15 of itself, and a capped up one of 2^-15 of itself before up_offset is added; there backward's `out` may
 *     differ from forward's by as much. In all other cases CPU and CUDA agree to 16 ulp before the rounding, as do
 *     processors of different instruction sets (rope_build_info names the one in use). A device or an instruction set
 *     gives the same bits whatever the thread count, the vector width or the launch.
 *
 * The calling process
 *   - Every function computes in the default floating-point environment (rounding to nearest, subnormal numbers kept,
 *     no exception trapped), whatever the caller's is, and restores the caller's, exception flags included.
 *   - A thread that is cancelled during a call finishes the call first. Asynchronous cancellation
 *     (PTHREAD_CANCEL_ASYNCHRONOUS) and a signal handler that leaves a call by longjmp are at the caller's own risk.
 *   - A CPU call may run on threads that the library starts. They block every signal except those of faults (SIGSEGV,
 *     SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS). A program that handles faults in its tensors handles them on these
 *     threads too, with at least 128 KiB of stack. A forked child starts its own threads.
 *   - A CPU call needs at most 48 KiB of its thread's stack. Larger buffers are in memory that the process keeps.
 *
 * Threads: every function may be called from any thread. Descriptors are immutable; destroy one only when no call on it
 * is still running on the host. Work already enqueued on a stream outlives its descriptor.
 *
 * 64-bit platforms only. This header needs no CUDA header.
 */
#ifndef ROPE_ROPE_H
#define ROPE_ROPE_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "librope supports 64-bit platforms only"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ROPE_API __attribute__((visibility("default")))
#else
#define ROPE_API
#endif

/* ---- Version ---------------------------------------------------------------------------------------------------- */

/* The version of this header. Everything else, the build files included, reads it from here. */
#define ROPE_VERSION_MAJOR 0
#define ROPE_VERSION_MINOR 3
#define ROPE_VERSION_PATCH 0
#define ROPE_VERSION (ROPE_VERSION_MAJOR * 10000 + ROPE_VERSION_MINOR * 100 + ROPE_VERSION_PATCH)

/* The version of the loaded library, in the form of ROPE_VERSION. */
ROPE_API uint32_t rope_version(void);

/* One line for bug reports: version, with "-dev" behind it until that version is released, CPU instruction sets, CUDA
 * version and architectures, or the reason why the build has no CUDA. The text is static. */
ROPE_API const char *rope_build_info(void);

/* ---- Status ----------------------------------------------------------------------------------------------------- */

/* The result of a call. */
typedef int32_t rope_status_t;
enum {
  ROPE_STATUS_SUCCESS = 0,
  ROPE_STATUS_INVALID_ARGUMENT = 1, /* the request is wrong on any machine */
  ROPE_STATUS_NOT_SUPPORTED = 2,    /* well formed, but not supported by this version, build or device */
  ROPE_STATUS_OUT_OF_MEMORY = 3,    /* host memory */
  ROPE_STATUS_NO_DEVICE = 4,        /* no such device here: no driver, none visible, or none that this code runs on */
  ROPE_STATUS_CUDA_ERROR = 5,       /* the CUDA runtime returned an error; the message contains its text */
  ROPE_STATUS_INTERNAL_ERROR = 6    /* a bug in librope: please report the message */
};

/* The status as a word, such as "INVALID_ARGUMENT"; "UNKNOWN" for any other value. The text is static, never NULL. */
ROPE_API const char *rope_status_name(rope_status_t status);

/* The message of this thread's last failing call: function, field, value, rule. It is "" before the first failure. A
 * successful call does not change it, except that rope_device_count also writes it when the count is 0. Each thread has
 * its own text, which stays valid until the thread's next failure. */
ROPE_API const char *rope_last_error(void);

/* ---- Devices, types, layouts ------------------------------------------------------------------------------------ */

/* A CUDA stream. cudaStream_t and CUstream convert without a cast. NULL is the legacy default stream of the
 * descriptor's device. For CPU descriptors it must be NULL. */
typedef struct CUstream_st *rope_stream_t;

/* Where a descriptor's tensors lie and its calls run. The numbers are DLPack's. */
typedef int32_t rope_device_t;
enum {
  ROPE_DEVICE_CPU = 1,
  ROPE_DEVICE_CUDA = 2
};

/* Writes to *count_out the number of devices of this kind that this process can use: 1 for the CPU. Without a usable
 * CUDA device the call succeeds and writes 0; rope_last_error() then gives the reason (no driver, a driver too old, no
 * visible device, a build without CUDA).
 * INVALID_ARGUMENT: an unknown device kind, count_out is NULL. */
ROPE_API rope_status_t rope_device_count(rope_device_t device, int32_t *count_out);

/* The type of a tensor's elements. */
typedef int32_t rope_dtype_t;
enum {
  ROPE_DTYPE_F32 = 1,
  ROPE_DTYPE_F16 = 2,
  ROPE_DTYPE_BF16 = 3,
  ROPE_DTYPE_F64 = 4,
  ROPE_DTYPE_I32 = 5, /* positions, slots and the like only */
  ROPE_DTYPE_I64 = 6, /* positions, slots and the like only */

  /* This type and the next ones are for outputs, caches and their scales only. Values are rounded to nearest even.
   * Values beyond the largest number of the type, and infinities, become the largest; NaN stays NaN if the type has
   * one. */
  ROPE_DTYPE_F8_E4M3 = 7, /* largest 448, NaN, no infinity (OCP OFP8; torch.float8_e4m3fn) */
  ROPE_DTYPE_F8_E5M2 = 8, /* largest 57344, NaN (OCP OFP8; torch.float8_e5m2) */
  ROPE_DTYPE_F8_E8M0 = 9, /* scales: 2^(byte - 127), 255 is NaN (OCP MX) */
  /* An element is a byte of two neighbouring channels, the even one in the low four bits. A row of D channels is D/2
   * elements, and shape and stride count these. The largest number is 6, and NaN becomes 6 too. (OCP MX;
   * torch.float4_e2m1fn_x2) */
  ROPE_DTYPE_F4_E2M1X2 = 10
};

/* The order of a tensor's axes: Batch, Sequence, Heads, head Dimension (channels). Strides place them in memory. */
typedef int32_t rope_layout_t;
enum {
  ROPE_LAYOUT_BSHD = 1,
  ROPE_LAYOUT_SBHD = 2,
  ROPE_LAYOUT_BHSD = 3,
  ROPE_LAYOUT_THD = 4 /* rank 3: all tokens of all sequences, back to back */
};

/* Which channels form pair i of the rotated window of R channels. With R = 8, and pairs named a b c d:
 *   HALF         a b c d a b c d    channels i and i + R/2 (Llama in Hugging Face, GPT-NeoX, Qwen)
 *   INTERLEAVED  a a b b c c d d    channels 2i and 2i + 1 (GPT-J, Llama as published by Meta, DeepSeek)
 * "NeoX style" means opposite things in two popular libraries; look at the channels, not at the name. */
typedef int32_t rope_style_t;
enum {
  ROPE_STYLE_HALF = 1,
  ROPE_STYLE_INTERLEAVED = 2
};

/* ---- Tensors ---------------------------------------------------------------------------------------------------- */

enum {
  ROPE_TENSOR_STRIDED = 1 /* strides are used as they are, all-zero ones (expanded tensors) included */
};

/* A view of caller memory, passed by value. Its size is 80 bytes in every version.
 *   - A tensor of ndim 0 is absent. Its other members must be zero, so that a view with a forgotten ndim is refused.
 *   - data is aligned to the element and may be NULL only if the view has no elements.
 *   - stride counts elements, may be negative, and is read for the first ndim axes. Without ROPE_TENSOR_STRIDED
 *     all-zero strides mean compact, last axis fastest; any other strides are used as they are. Bindings always set the
 *     flag.
 *   - An input may broadcast with stride 0. An output axis of stride 0 and size above 1 is INVALID_ARGUMENT. */
typedef struct rope_tensor {
  void *data;         /* address of the element with all indices 0 */
  rope_dtype_t dtype; /* type of the elements */
  uint16_t ndim;      /* 0 to 4 */
  uint16_t flags;     /* ROPE_TENSOR_STRIDED or 0 */
  int64_t shape[4];   /* each at least 0 */
  int64_t stride[4];  /* in elements */
} rope_tensor_t;

/* An absent tensor. */
#define ROPE_TENSOR_INIT \
  { NULL, 0, 0, 0, {0}, {0}, }

/* Writes to *view_out the part of *src with indices start to start + length - 1 along axis `dim`. Such views express
 * packed tensors: q of a packed [T, Hq + 2 Hk, D] is narrow(qkv, 1, 0, Hq), its k narrow(qkv, 1, Hq, Hk).
 * The view keeps the strides of *src and is marked ROPE_TENSOR_STRIDED. view_out may be src.
 * INVALID_ARGUMENT: a NULL pointer, an absent or malformed src, dim outside its axes, a range outside the axis. */
ROPE_API rope_status_t rope_tensor_narrow(const rope_tensor_t *src, int32_t dim, int64_t start, int64_t length,
                                          rope_tensor_t *view_out);

/* Writes to *view_out the slice of *src at `index` along axis `dim`, without that axis: cos of a cache of (cos, sin)
 * pairs [M, R/2, 2] is select(cache, 2, 0). view_out may be src.
 * INVALID_ARGUMENT: as for narrow; src has only one axis (an absent tensor would be left). */
ROPE_API rope_status_t rope_tensor_select(const rope_tensor_t *src, int32_t dim, int64_t index,
                                          rope_tensor_t *view_out);

/* ---- RoPE ------------------------------------------------------------------------------------------------------- */

/* A rotation: a checked config, and the data that calls derive from it. */
typedef struct rope_desc rope_desc_t;

enum {
  ROPE_MAX_POSITION_AXES = 8
};

/* ---- The step: norm, rotation, row factors, cache -----------------------------------------------------------------
 *
 * Models normalise q and k before or after the rotation, and then write k and v to a cache, often with fewer bits. One
 * call does all of this in one pass. It performs the following steps for each token and each head of q, k and v, in
 * this order, in fp32 (F64: fp64), with one rounding per destination unless stated otherwise:
 *   1. read the head; channels outside the window come from the same head, or from the pass of `input`;
 *   2. norm, with ROPE_NORM_ORDER_BEFORE;
 *   3. rotate, unless a flag prevents it;
 *   4. norm, with ROPE_NORM_ORDER_AFTER;
 *   5. multiply all channels by the row factor of the token, or of the token and head;
 *   6. store to q_out, k_out, v_out and the caches; each is rounded, or scaled and quantised, once for itself.
 *
 * Each family of operands is a separate struct, to which rope_args_t points: norm, cache, quant, input. NULL means that
 * the family is absent; a struct is read during the call only. A call with v and any of them needs ROPE_FLAG_UNROTATED
 * or ROPE_FLAG_V_UNROTATED, else it is NOT_SUPPORTED: without a flag v is rotated, and a server that forgot the flag
 * would cache rotated values.
 *
 * In place, the channels outside the window are neither read nor written if a tensor is neither normed nor scaled nor
 * cached. They are read if it is cached, and read and written if it is normed or scaled.
 *
 * This version supports norms, row factors and tensors that are not rotated; in rope_forward also q_pass and k_pass,
 * caches, and outputs and caches of F8_E4M3 and F8_E5M2 with static scales, written scales or none. It refuses the rest
 * with NOT_SUPPORTED and a message that names it: for RoPE F4_E2M1X2 and written scales of F8_E4M3; for SwiGLU
 * gradients and columns of 4 bits. */

/* The formulas of a norm over the n channels x of a head. r is the number nearest to 1/sqrt(v), with F64 the quotient
 * of 1 and the root; w is the weight plus norm_weight_offset, or 1 if no weight is given:
 *   RMS    v = sum(x * x) / n + eps                       y = x * r * w
 *   LAYER  m = sum(x) / n, x becomes x - m, v as in RMS   y = x * r * w + bias
 * (Zhang and Sennrich, arXiv:1910.07467; Ba et al., arXiv:1607.06450.) A sum is computed as a tree. Its terms are those
 * of channels 0 to n - 1, then +0 up to a power of two. Neighbours 2i and 2i + 1 are added, each sum rounded, until one
 * is left, which is multiplied by 1/n, rounded. Every operation is rounded once and none is fused: CPU and CUDA give
 * the same bits.
 *
 * The gradients of rope_backward, with g the gradient of y, u = x * r (LAYER: of x less m), and h = g * w:
 *   of x         (h - sum(h)/n - u * (sum(h * u)/n)) * r, RMS without sum(h)/n
 *   of a weight  the sum over tokens of g * u           of a bias  the sum over tokens of g
 * The operations and their order are those of the formulas; sums over channels use the same tree. Forward's roundings
 * (norm_rounding, but not that of the sum with norm_weight_offset) count as none. A row factor, which is a constant,
 * multiplies the gradient first. */
typedef int32_t rope_norm_type_t;
enum {
  ROPE_NORM_RMS = 1,
  ROPE_NORM_LAYER = 2
};

/* Whether the norm comes before the rotation (Qwen3, Gemma 3) or after it (Llama 4, HunYuan). */
typedef int32_t rope_norm_order_t;
enum {
  ROPE_NORM_ORDER_BEFORE = 0,
  ROPE_NORM_ORDER_AFTER = 1
};

/* The channels that one norm covers. */
typedef int32_t rope_norm_extent_t;
enum {
  ROPE_NORM_EXTENT_HEAD = 0, /* those of each head */
  ROPE_NORM_EXTENT_TOKEN = 1 /* those of all heads of the tensor in this call; the heads' sums are added by the same
                                tree (OLMo-2, MiniMax-M2). Under tensor parallelism a call has only a part of the heads,
                                so this is not the model's norm */
};

/* Which tensors are normed, as bits. */
enum {
  ROPE_NORM_TENSOR_Q = 1,
  ROPE_NORM_TENSOR_K = 2,
  ROPE_NORM_TENSOR_V = 4 /* without weight and bias (Gemma 4) */
};

/* Roundings to the descriptor's dtype inside the norm, as bits, for published models that do not stay in fp32. */
enum {
  ROPE_NORM_ROUND_BEFORE_WEIGHT = 1, /* x * r is rounded before the weight (Llama, Qwen3 in Hugging Face) */
  ROPE_NORM_ROUND_AFTER_WEIGHT = 2   /* the product with the weight, and the sum with the bias, are rounded */
};

/* Roundings to the descriptor's dtype before a value is scaled and quantised. */
enum {
  ROPE_QUANT_ROUND_FIRST = 1 /* as in systems with separate kernels that write 16 bits and quantise those */
};

/* Roundings of the rotation itself. */
enum {
  /* cos, sin, products and sums are each rounded to the descriptor's dtype, forward and backward, as in Hugging Face
   * eager, vLLM and apex: with their cos and sin the results have their bits. cos and sin of computed angles are
   * rounded after attention_scale; for these no equality is claimed. The sums are rounded before a norm, a row factor
   * or codes that follow in the same call. F32 and F64 have the same bits without this rounding. */
  ROPE_ROTATION_ROUND_EACH = 1
};

/* The choices of a descriptor, which select code. R below is the rotated width: rotary_dim, or head_dim if rotary_dim
 * is 0. A is the number of position axes: num_axes, or 1 if num_axes is 0. */
typedef struct rope_config {
  uint32_t struct_size;   /* sizeof(rope_config_t) */
  uint32_t flags;         /* 0 */
  rope_device_t device;   /* required */
  int32_t device_index;   /* CUDA ordinal as in cudaSetDevice; 0 for the CPU */
  rope_dtype_t dtype;     /* required: F32, F16, BF16 or F64; type of q, k and v, and of their outputs, which for F32
                             may also be F16 or BF16 */
  rope_layout_t layout;   /* required */
  rope_style_t style;     /* required; there is no default because a wrong one would go unnoticed */
  int32_t head_dim;       /* required: channels per head, even, 2 to 1024 */
  int32_t rotary_dim;     /* R: channels that are rotated, even, at most head_dim; 0: head_dim */
  int32_t rotary_offset;  /* first rotated channel; rotary_offset + R <= head_dim. MLA and DeepSeek rotate the tail */
  double theta;           /* base of the frequencies, 1e-300 to 1e300: inv_freq[i] = theta^(-2i/R) radians per position.
                              0 with inv_freq NULL: a descriptor for tables or angles only */
  double attention_scale; /* multiplies cos and sin of computed angles and of `angles` (YaRN's attention factor), never
                              those of tables, which include it; finite in fp32; 0: 1.0 */
  const double *inv_freq; /* R/2 frequencies in radians per position, finite, any sign, 0 allowed; host memory, copied,
                              taken as exact; overrides theta. NULL: from theta. Fractional positions are expressed by
                              scaling them to integers and dividing inv_freq */
  const int32_t *pair_axis; /* the position axis, 0 to A - 1, that turns pair i; R/2 entries; host memory, copied; NULL:
                               all 0 */
  int32_t num_axes;         /* A: positions that a token has (time, height, width), 1 to ROPE_MAX_POSITION_AXES; 0: 1 */
  int32_t pair_block;       /* pairs of HALF are (c, c + block/2) inside each block of this many channels, numbered
                               block after block; even, divides R; 0: R. A 2-D rope that turns each half of R by itself
                               has R/2. INVALID_ARGUMENT if neither style nor out_style is HALF */
  int32_t num_threads;      /* CPU: the most threads that a call may use, the caller's included; 0: the number of
                               processors that the creating thread may run on, or the CPU quota of the process's cgroup
                               (the limit of a container), rounded up, if that is less */
  rope_style_t out_style;   /* pairs are read in `style` and written in out_style, inside the same window, also in place
                               (DeepSeek and Megatron's MLA: INTERLEAVED in, HALF out); backward reads gradients in
                               out_style and writes them in style; 0: style */
  rope_norm_type_t norm; /* a ROPE_NORM_ value; every call then has rope_args_t's norm. 0: none, and no call has it */
  int32_t norm_tensors;  /* ROPE_NORM_TENSOR_ bits; 0: q and k, with a norm */
  rope_norm_order_t norm_order;   /* a ROPE_NORM_ORDER_ value */
  rope_norm_extent_t norm_extent; /* a ROPE_NORM_EXTENT_ value */
  int32_t norm_rounding;          /* ROPE_NORM_ROUND_ bits */
  int32_t quant_rounding;         /* ROPE_QUANT_ROUND_ bits */
  int32_t rotation_rounding;      /* ROPE_ROTATION_ROUND_EACH or 0 */
  int32_t reserved1;              /* 0 */
  double norm_eps;                /* eps, rounded to fp32 (F64: taken as it is); finite in fp32, above 0 with a norm */
  double norm_weight_offset;      /* rounded like eps and added to every weight, but not to an absent one; finite in
                                     fp32; 1: Gemma */
} rope_config_t;

/* A rope_config_t with all members 0 except struct_size. */
#define ROPE_CONFIG_INIT \
  { sizeof(rope_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Checks the config, computes the phase increments and loads the kernels that calls will need. The status therefore
 * shows whether this build and device support a request. On success *desc_out is the new descriptor; on failure it is
 * NULL.
 * INVALID_ARGUMENT: a field breaks its rule. NOT_SUPPORTED: unknown flags, and CUDA in a build without it.
 * NO_DEVICE: no such CUDA device, no driver, or no kernel for it. OUT_OF_MEMORY, CUDA_ERROR. */
ROPE_API rope_status_t rope_desc_create(const rope_config_t *config, rope_desc_t **desc_out);

/* Destroys a descriptor. Accepts NULL. Later calls refuse a destroyed descriptor until a new one reuses its memory. */
ROPE_API void rope_desc_destroy(rope_desc_t *desc);

/* Flags of a call. */
enum {
  /* CUDA: launches with programmatic dependent launch, from compute capability 9.0 on; elsewhere without effect. The
   * kernel starts while the one before it on the stream still runs, waits for its end before it reads or writes any of
   * the call's tensors, and lets the next kernel start early in the same way. It saves time in short calls if the
   * kernels before and after them launch programmatically too (0.4 us a call in a CUDA graph, 1 us on a stream), and on
   * a stream between any kernels (1 us). In a graph between kernels that do not, such as matrix products of cuBLAS, it
   * costs 0.1 to 0.3 us: leave it off there. (NVIDIA H200) */
  ROPE_FLAG_PROGRAMMATIC_LAUNCH = 1,

  /* RoPE: no tensor is rotated (layers without positions, a cache write alone). Frequencies are not needed and tables
   * are refused; positions may be given, for a page_table. Tensors that are neither normed nor scaled keep their bits;
   * pairs of q and k still move from style to out_style. */
  ROPE_FLAG_UNROTATED = 2,

  /* RoPE: v is not rotated, q and k are. With either flag v keeps the order of its channels and may have a number of
   * channels of its own. Angles are those of q and k: unlike with UNROTATED, a call needs frequencies or tables, and
   * checks them, even if v is its only tensor. */
  ROPE_FLAG_V_UNROTATED = 4,

  /* rope_backward: the gradients are added to the present values of the outputs instead of replacing them: one sum for
   * each element in the arithmetic of the call, rounded once to the output's dtype. Channels outside the window are
   * added too. Each tensor needs an output of its own: an absent one, or one that is its input, is INVALID_ARGUMENT, as
   * is the flag in rope_forward. An output without elements may have any address. */
  ROPE_FLAG_ACCUMULATE = 8
};

/* Which row of cos, sin and angles a token has. A table has M rows and W columns. With A above 1 each position axis may
 * have a table of its own: an axis of length A comes first. An axis A or B of length 1 applies to all. */
enum {
  ROPE_TABLE_BY_POSITION = 0, /* [M, W] or [A, M, W], row = position of the token. A token with a position outside 0 to
                                 M - 1, on any axis that turns a pair, passes through unrotated (its pairs still move
                                 from style to out_style), reads no row, and is counted in `fault` */
  ROPE_TABLE_BY_TOKEN = 1     /* [S, W] or [B, S, W], THD [T, W]; with A above 1 [A, S, W], [A, B, S, W], THD [A, T, W];
                                 row = token. Not together with positions, start_positions or position_offset */
};

/* Operands of the norm. Weights and biases are F32 or the descriptor's dtype, [D], or [H, D] with a weight for each of
 * the tensor's H heads. A tensor that has the window alone, without a pass, has R instead of D, here and in the
 * gradients. If out_style differs from style, they number channels as the call reads them with ORDER_BEFORE, and as it
 * writes them with ORDER_AFTER. In backward q has the gradient of the output, and q_in, k_in, v_in have the inputs of
 * the forward call, which share no element with any output (a forward call in place destroys them). Backward needs
 * weights as forward does, and does not read biases. */
typedef struct rope_norm_args {
  uint32_t struct_size;             /* sizeof(rope_norm_args_t) */
  uint32_t flags;                   /* 0 */
  rope_tensor_t q_weight, k_weight; /* absent: 1, and norm_weight_offset is not added */
  rope_tensor_t q_bias, k_bias;     /* LAYER only; absent: nothing is added */
  /* Backward: shapes and dtype of q, k and v, required for normed tensors. Forward: absent. */
  rope_tensor_t q_in, k_in, v_in;
  /* Backward: gradients of the weights, F32 (F64: F64), [N, D] or [N, H, D]; absent: not computed. Tokens, numbered
   * b * S + s or t, are cut into N runs of ceil(tokens / N), the last ones shorter or empty. A call adds the terms of
   * run n to row n. With [N, H, D] it adds token after token to the row's present value. With [N, D] it adds the terms
   * of each head token after token, starting from 0, then the sums of the heads by the norm's tree, then that sum to
   * the row. Padding adds nothing. Each N has its own fixed bits. More runs are more parallel: use a few for each
   * multiprocessor or thread. The caller zeroes the rows before the first call and adds them up after the last one.
   * INVALID_ARGUMENT: [N, D] of weights for each head. NOT_SUPPORTED: [N, D] of more than 512 heads. */
  rope_tensor_t grad_q_weight, grad_k_weight;
  rope_tensor_t grad_q_bias, grad_k_bias; /* LAYER: likewise for the biases, with the N of the weight's gradient */
} rope_norm_args_t;

/* A rope_norm_args_t with absent tensors and flags 0. */
#define ROPE_NORM_ARGS_INIT                                                                                         \
  {                                                                                                                 \
    sizeof(rope_norm_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT,            \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT                                                                                            \
  }

enum {
  ROPE_CACHE_FLAG_SKIP_SLOT_0 = 1 /* slot 0 is reserved and not written (sglang) */
};

/* Paged caches that k and v are written to. A cache is [P, E, H, channels]: pages, entries of a page, heads, channels.
 * It has any strides: heads before entries, and k and v stacked or side by side in one buffer, are views. Its dtype is
 * the descriptor's, F16 or BF16 for F32 data, or an 8-bit or 4-bit type. All caches of a call have the same P and E.
 *
 * Either `slots` or `page_table` gives the place of each token. With a negative slot, page, sequence or position a
 * token is not cached. With any other one outside its range it is not cached either and is counted in `fault`, once for
 * its angle and once for its place, whatever heads and destinations it has. No value causes a write outside a cache. If
 * two tokens have one place, each element is that of either. A token without a row of a table is cached unrotated, but
 * normed. Tokens outside cu_seqlens are not cached. The kernel reads these values from their tensors when it runs, so
 * they may change between replays of a CUDA graph.
 *
 * With k_cache, an absent k_out means that k is cached only and not written elsewhere; a k_out that is k means that k
 * is also written in place. v_cache and v_out have this meaning for v. A cache shares no element with another tensor of
 * the call. */
typedef struct rope_cache_args {
  uint32_t struct_size;           /* sizeof(rope_cache_args_t) */
  uint32_t flags;                 /* ROPE_CACHE_FLAG_ values */
  rope_tensor_t k_cache, v_cache; /* [P, E, H, D] with the H of k or v; R channels if k_pass_cache has the others */
  /* [P, E, H, D - R]: the channels before the window, then those behind it, whether they come from k or from k_pass
   * (for a latent cache with halves of different types). It needs k_cache, and a k of D channels or k_pass. */
  rope_tensor_t k_pass_cache;
  /* F32 or F8_E8M0 [P, E, H, G]: written scales of caches of 8 bits, one for each of G groups of neighbouring channels.
   * G divides the channels of the cache. Any strides, so that scales inside a cache's rows are views. */
  rope_tensor_t k_scales, v_scales, k_pass_scales;
  rope_tensor_t slots; /* I32/I64 [B, S], THD [T], or [N] with N at most T for the first N tokens: page * E + entry */
  rope_tensor_t page_table;  /* I32/I64 [B, any]: the pages of each sequence; with `sequence` there may be any number of
                                sequences; with page_indptr one list for all, [any] */
  rope_tensor_t page_indptr; /* I32/I64 [B + 1]: sequence b has entries page_indptr[b] to page_indptr[b + 1] - 1 */
  /* I32/I64, shape of slots: the row of page_table of each token. Absent: its batch, or its sequence in cu_seqlens. */
  rope_tensor_t sequence;
  /* I32/I64, shape of slots: the token's position in the cache; E positions make a page. Absent: its position for the
   * rotation. Required with several position axes and with ROPE_TABLE_BY_TOKEN. */
  rope_tensor_t positions;
} rope_cache_args_t;

/* A rope_cache_args_t with absent tensors and flags 0. */
#define ROPE_CACHE_ARGS_INIT                                                                                        \
  {                                                                                                                 \
    sizeof(rope_cache_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT,           \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT                                                                                            \
  }

/* How values of 8 and 4 bits are scaled. */
enum {
  ROPE_QUANT_FLAG_SCALE_MULTIPLIES = 1, /* static scales only: stored = x * scale (flashinfer, TensorRT-LLM,
                                           TransformerEngine); else x * i, i = 1/scale rounded (vLLM divides: about 2
                                           in 10 000 of its codes differ, by one step; none if scales are powers of
                                           two) */
  ROPE_QUANT_FLAG_POWER_OF_TWO = 2      /* written F32 scales are powers of two; needs written scales */
};

/* Scales of outputs and caches of 8 and 4 bits. A destination has written scales if a tensor for them is given, else
 * its static scale, else none. q_scale, k_scale or v_scale together with written scales of an output or cache of its
 * tensor is INVALID_ARGUMENT, as is k_pass_scale with k_pass_scales. Written scales of F8_E4M3 are the exception: their
 * static scale is the global factor g. With top the largest number of the destination's type, and amax the largest
 * magnitude of a group, at least scale_floor, compared as integers (NaN above infinity), a written scale is
 *   F32       amax / top, rounded; with POWER_OF_TWO the least power of two p with top * p >= amax
 *   F8_E8M0   that power of two (OCP MX). It is amax / top rounded up, as TransformerEngine has it; OCP's own algorithm
 *             takes the exponent of amax less that of top, and values above top saturate
 *   F8_E4M3   g * (amax / 6), each operation rounded to F32 and the product to F8_E4M3, 448 at most (NVFP4)
 * and codes are x * i with i = 1/scale, rounded (F8_E4M3: g/scale); i is 0 for a scale of 0, and the largest F32 if it
 * exceeds that. A NaN among the values gives a NaN scale (F8_E8M0: 255) and NaN codes. An infinity gives an infinite
 * scale (F8_E8M0: 254), NaN codes for infinities and 0 for the other values. Scales of F8_E4M3 have no infinity and are
 * 448 in this case.
 *
 * A static scale should be a positive normal number. The i of any other has these bounds too: it is 0 for a scale of 0,
 * and for the smallest scales the largest F32, with their sign. A scale that is NaN gives NaN codes.
 *
 * A product becomes a code by rounding to nearest even. Products beyond the largest number of the type, infinities too,
 * become that number; NaN becomes 0x7f (types of 4 bits: 6). Backward: absent, and outputs have more than 8 bits. */
typedef struct rope_quant_args {
  uint32_t struct_size; /* sizeof(rope_quant_args_t) */
  uint32_t flags;       /* ROPE_QUANT_FLAG_ values */
  double scale_floor;   /* of amax, a number of F32 above 0; needs written scales; 0: 1e-10 for F32 scales, else none */
  rope_tensor_t q_scale, k_scale, v_scale, k_pass_scale; /* static: F32 [1] or [H], above 0, where the tensors are */
  /* Written, F32 or F8_E8M0: the axes of q_out, k_out and v_out, but instead of channels G groups of neighbouring
   * channels in the order of the output; THD also [T, H, G/4, 4]. Any strides. */
  rope_tensor_t q_scales_out, k_scales_out, v_scales_out;
  /* F32 [3], for q, k and v: a call raises each to the largest magnitude of the values that become 8 bits, before they
   * are scaled. It compares numbers as integers: there must be no negative number before the call, nor -0, and a NaN
   * stays. A token that is written nowhere, such as one without a place in a cache, raises nothing. */
  rope_tensor_t amax_out;
} rope_quant_args_t;

/* A rope_quant_args_t with absent tensors and all other members 0 except struct_size. */
#define ROPE_QUANT_ARGS_INIT                                                                                 \
  {                                                                                                          \
    sizeof(rope_quant_args_t), 0, 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT                               \
  }

/* Further inputs. */
typedef struct rope_input_args {
  uint32_t struct_size; /* sizeof(rope_input_args_t) */
  uint32_t flags;       /* 0 */
  /* The descriptor's dtype, and the axes of q with D - R channels: those before the window, then those behind it. With
   * q_pass, q has the window alone, [.., R]; q_out is required and has all D; a norm covers all D. Heads may broadcast,
   * with stride 0 (one latent head for all). k_pass has these rules for k, which needs k_out or k_cache. q_out shares
   * no element with either. Backward: absent (the gradients are those of the parts of q_out; rotate that of the window
   * back). */
  rope_tensor_t q_pass, k_pass;
  /* F32 or the descriptor's dtype: a factor of each token, [S] or [B, S], THD [T], or of each token and head,
   * [B, S, H], THD [T, H] (Llama 4's temperature, log-n); an axis B of length 1 applies to all. All channels are
   * multiplied, those outside the window too, also in place. Backward: constants; the gradient is multiplied by them
   * last, but with a norm first. */
  rope_tensor_t q_row_factor, k_row_factor, v_row_factor;
} rope_input_args_t;

/* A rope_input_args_t with absent tensors and flags 0. */
#define ROPE_INPUT_ARGS_INIT                                                                              \
  {                                                                                                       \
    sizeof(rope_input_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT                                                                                  \
  }

/* The operands of a call. Names of axes: B batches (THD: sequences), S tokens of a sequence, T tokens of a THD tensor,
 * H heads, D = head_dim, A and R those of rope_config_t. Positions and tables are batch first whatever the layout. */
typedef struct rope_args {
  uint32_t struct_size; /* sizeof(rope_args_t) */
  uint32_t flags;       /* ROPE_FLAG_ values */
  /* q, k and v are each optional, but one is required; one launch processes all that are given. Their axes are those of
   * the layout, with equal B and S, or T, in all, and an H of its own for each (above 2^20 heads: NOT_SUPPORTED). A
   * tensor has D channels, or R, the window alone; a v that is not rotated has its own number of 1 to 1024. Outputs
   * have the channels of their inputs, with a pass of `input` all D. All have the descriptor's dtype, but outputs may
   * be F16 or BF16 if that is F32, and in forward F8_E4M3 or F8_E5M2 if it is not F64. In backward q has the gradient
   * of the output, and q_out receives that of the input. An absent *_out means in place: channels outside the rotated
   * window are then neither read nor written, unless they are normed or cached (only read); out of place they are
   * copied. */
  rope_tensor_t q, q_out, k, k_out, v, v_out;
  rope_tensor_t positions;       /* I32/I64 [S] or [B, S], THD [T] or [1, T]; with A above 1 [A, S] or [A, B, S], THD
                                    [A, T] or [A, 1, T]. An axis A or B of length 1 applies to all (Hugging Face's
                                    position_ids [1, S]). Absent: the token's index in its sequence, on every axis */
  rope_tensor_t start_positions; /* added to positions: I32/I64 [B], on every axis, or one for each token: [B, S], THD
                                    [T] or [1, T], with A above 1 the shapes of positions. An axis A or B of length 1
                                    applies to all. THD: B of [B] is that of cu_seqlens, or 1; if T = B, one number for
                                    each is [B] */
  rope_tensor_t cu_seqlens;      /* I32/I64 [B + 1], THD: sequence b has tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1.
                                    It begins with 0, never falls and stays within T. Tokens past its last entry, the
                                    padding of a captured graph, are not written. Absent: one sequence */
  rope_tensor_t cos, sin;        /* replace computed angles; any floating dtype and strides, with equal dtype and shape;
                                    table_rows selects the rows. Columns W:
                                      R/2     one for each pair
                                      R       one for each channel of the window, in the order of the output: with
                                              columns i and j of its channels, x' = x cos[i] - y sin[i] and
                                              y' = y cos[j] + x sin[j]; backward is the transpose of that
                                      R/(2A)  pair i has column i mod W: every axis has these frequencies */
  rope_tensor_t angles;          /* F32, F16 or BF16, shapes as for cos and sin: angles in radians, which replace these
                                    and computed ones (TransformerEngine, apex); reduced exactly */
  rope_tensor_t fault;           /* I64 [2], where the tensors are; the caller zeroes it, calls add: [0] tokens with a
                                    position outside the table or before cu_seqlens[0], and entries of cu_seqlens that
                                    break its rule; [1] the lowest of these tokens + 1, numbered b * S + s or t; an
                                    entry counts as the token that it names, clamped to 0 to T. Tokens with a sequence
                                    that cu_seqlens does not determine count in any one. With a cache, tokens with a
                                    place outside it count too (rope_cache_args_t) */
  int64_t position_offset;       /* added to every position; sums wrap in 64 bits */
  int32_t table_rows;            /* a ROPE_TABLE_ value */
  int32_t reserved0;             /* 0 */
  const rope_norm_args_t *norm;  /* with rope_config_t's norm, and only then; host memory, like the next three */
  const rope_cache_args_t *cache; /* NULL: no cache is written */
  const rope_quant_args_t *quant; /* NULL: nothing is scaled */
  const rope_input_args_t *input; /* NULL: no pass and no row factors */
} rope_args_t;

/* A rope_args_t with absent tensors and all other members 0 except struct_size. */
#define ROPE_ARGS_INIT                                                                                                \
  {                                                                                                                   \
    sizeof(rope_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT,   \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, 0, 0, 0, NULL, NULL, NULL, NULL                                           \
  }

/* Rotates q, k and v, if given, by the angles of their tokens' positions, each pair by the formula at the top of this
 * file. The kernel reads positions, start_positions and cu_seqlens from their tensors when it runs; no value makes it
 * read or write outside the tensors of the call.
 * INVALID_ARGUMENT: a NULL or destroyed descriptor, NULL args, a CPU descriptor with a stream, a tensor with a dtype,
 * rank or shape other than its field states, an overlap. NOT_SUPPORTED: unknown flags; sizes beyond one launch.
 * CUDA_ERROR: the launch failed. */
ROPE_API rope_status_t rope_forward(const rope_desc_t *desc, const rope_args_t *args, rope_stream_t stream);

/* Computes the transpose of rope_forward (not its inverse: with attention_scale m, backward(forward(x)) = m^2 x), that
 * is, the gradient of the inputs from that of the outputs:
 *     x' = x cos a + y sin a        y' = y cos a - x sin a
 * With attention_scale 1 and without a norm it also undoes the rotation. With a norm it is the gradient of both, from
 * forward's inputs (rope_norm_args_t). Arguments and errors are those of rope_forward. */
ROPE_API rope_status_t rope_backward(const rope_desc_t *desc, const rope_args_t *args, rope_stream_t stream);

/* Writes the cosines and sines of the descriptor's frequencies, times attention_scale, at positions 0 to M - 1: tables
 * for rope_forward with ROPE_TABLE_BY_POSITION. cos_out and sin_out have one shape, [M, W] or [A, M, W] with W = R/2, R
 * or R/(2A), one floating dtype, and any strides. They lie where the descriptor's tensors lie. F64 tables are computed
 * in fp64, others in fp32. With F32 tables rope_forward gives the bits of computed angles (dtype F64: with F64 tables).
 * INVALID_ARGUMENT: a descriptor without frequencies, W = R/(2A) with frequencies that do not repeat, a tensor of
 * another dtype or shape, an overlap, a CPU descriptor with a stream. CUDA_ERROR: the launch failed. */
ROPE_API rope_status_t rope_fill_tables(const rope_desc_t *desc, const rope_tensor_t *cos_out,
                                        const rope_tensor_t *sin_out, rope_stream_t stream);

/* Describes in one line how rope_forward and rope_backward would run these arguments: kernel, vector width, grid, and
 * the bytes that must move; with ROPE_FLAG_ACCUMULATE, or with a norm's q_in, k_in or v_in, how rope_backward would.
 * Writes at most `size` bytes to text, the last a 0; longer texts are cut (256 bytes hold all). Errors are those of
 * rope_forward; INVALID_ARGUMENT also if text is NULL or size is 0. */
ROPE_API rope_status_t rope_explain(const rope_desc_t *desc, const rope_args_t *args, char *text, size_t size);

/* ---- Frequencies ------------------------------------------------------------------------------------------------ */

/* Published recipes for longer contexts than a model was trained on. Each gives a vector of frequencies and one factor
 * of cos and sin, computed here once, in double, on the host:
 *
 *   rope_scaling_t scaling = ROPE_SCALING_INIT;
 *   scaling.type = ROPE_SCALING_LLAMA3;
 *   scaling.factor = 8;
 *   scaling.original_max_position = 8192;
 *   status = rope_scaled_frequencies(128, 5e5, &scaling, inv_freq, &attention_scale);
 *   config.inv_freq = inv_freq;
 *   config.attention_scale = attention_scale;
 *
 * Below: R = rotary_dim, i = 0 to R/2 - 1 a pair, f(i) = theta^(-2i/R), s = factor, M = original_max_position,
 * L = sequence_length, and m the attention factor, 1 unless stated otherwise. With s = 1 every recipe that uses factor
 * gives f and m = 1, apart from the effects of LONGROPE's arrays, PROPORTIONAL's share and attention_factor. */
typedef int32_t rope_scaling_type_t;
enum {
  /* f(i) */
  ROPE_SCALING_NONE = 1,

  /* f(i) / s. Uses factor. (Chen et al., arXiv:2306.15595; "linear" of Hugging Face) */
  ROPE_SCALING_LINEAR = 2,

  /* f of theta' = theta * (s * L/M - (s - 1))^(R/(R-2)), L at least M. Uses factor, original_max_position and
   * sequence_length, where 0 means M. Call it again when L grows. R = 2 is INVALID_ARGUMENT: the exponent divides by 0.
   * ("dynamic" of Hugging Face, where M is max_position_embeddings) */
  ROPE_SCALING_DYNAMIC_NTK = 3,

  /* DYNAMIC_NTK at the fixed length L = s * M, so that M drops out. Uses factor. R = 2 is INVALID_ARGUMENT.
   * ("dynamic" of vLLM) */
  ROPE_SCALING_DYNAMIC_NTK_FIXED = 4,

  /* f of theta' = theta * alpha^(R/(R-2)). Uses alpha. R = 2 is INVALID_ARGUMENT. ("dynamic" with alpha: Hunyuan) */
  ROPE_SCALING_NTK_ALPHA = 5,

  /* f(i) of theta' = theta * s, divided by s^(2/R). Uses factor. ("ntk" of vLLM) */
  ROPE_SCALING_NTK_FIXED = 6,

  /* f(i) / exp(a * (i + 1)^b) with a = ln(s) / (R/2)^b. Uses factor and mixed_b. ("ntk" with mixed_b of vLLM) */
  ROPE_SCALING_NTK_MIXED = 7,

  /* f(i) / s * r(i) + f(i) * (1 - r(i)). The ramp r(i) = (i - low) / (high - low), clamped to 0 to 1, runs from the
   * pair that turns beta_fast times within M positions to the one that turns beta_slow times:
   *   turning(n) = R * ln(M / (2 pi n)) / (2 ln(theta))
   *   low = max(floor(turning(beta_fast)), 0)        high = min(ceil(turning(beta_slow)), R - 1)
   * high is raised by 0.001 if it equals low. (The published code has the bound R - 1, although it counts pairs.)
   *   m = g(s, mscale) / g(s, mscale_all_dim), g(s, k) = 0.1 * k * ln(s) + 1;        attention_factor replaces it
   * Uses factor, original_max_position, beta_fast, beta_slow, attention_factor or mscale and mscale_all_dim, and
   * ROPE_SCALING_FLAG_NO_TRUNCATE. INVALID_ARGUMENT: theta of at most 1; low above high, if M is so small or so
   * large that no pair lies between. (Peng et al., arXiv:2309.00071; "yarn" of Hugging Face; DeepSeek; gpt-oss) */
  ROPE_SCALING_YARN = 8,

  /* f(i) / s^r(i): the ramp of YARN, over logarithms. m = 1. Uses factor, original_max_position, beta_fast, beta_slow
   * and ROPE_SCALING_FLAG_NO_TRUNCATE; INVALID_ARGUMENT as for YARN. ("yarn_log" of Grok) */
  ROPE_SCALING_YARN_LOG = 9,

  /* By the wavelength w = 2 pi / f(i) in positions:
   *   w < M / high_freq_factor: f(i)        w > M / low_freq_factor: f(i) / s
   *   between: (1 - t) * f(i) / s + t * f(i), t = (M/w - low_freq_factor) / (high_freq_factor - low_freq_factor)
   * If the two factors are equal nothing lies between, and w = M / low_freq_factor gives f(i) / s. Uses factor,
   * original_max_position, low_freq_factor, high_freq_factor. ("llama3" of Hugging Face) */
  ROPE_SCALING_LLAMA3 = 10,

  /* f(i) / long_factor[i] if L > M, else f(i) / short_factor[i]; m = sqrt(1 + ln(s) / ln(M)), or attention_factor.
   * s is the ratio of the longest position that the model supports to M. Uses original_max_position, sequence_length
   * (0 means M), factor (0 with attention_factor, else required), attention_factor, num_factors, short_factor and
   * long_factor. The choice is for all positions at once: tensors rotated before L passed M do not fit later ones.
   * INVALID_ARGUMENT: M = 1 with a factor above 1. (Ding et al., arXiv:2402.13753; "longrope" and "su" of Phi-3) */
  ROPE_SCALING_LONGROPE = 11,

  /* f(i) / s for the first floor(partial_rotary_factor * R/2) pairs and 0, no rotation, for the others. R is the width
   * in the exponent, so head_dim. Uses factor (0 means 1) and partial_rotary_factor. INVALID_ARGUMENT: no pair is left.
   * ("proportional" of Hugging Face, Gemma 4) */
  ROPE_SCALING_PROPORTIONAL = 12,

  /* f(i) / pair_factors[i]. Uses num_factors and pair_factors. ("rope_freqs" of GGUF files) */
  ROPE_SCALING_FACTORS = 13
};

enum {
  ROPE_SCALING_FLAG_NO_TRUNCATE = 1 /* YARN, YARN_LOG: low and high are not rounded ("truncate": false, gpt-oss) */
};

/* A recipe and its parameters. A field that the recipe does not use must be 0; else the call refuses it by name.
 * Numbers are finite; arrays lie in host memory and are read during the call only. */
typedef struct rope_scaling {
  uint32_t struct_size;          /* sizeof(rope_scaling_t) */
  uint32_t flags;                /* ROPE_SCALING_FLAG_ values */
  rope_scaling_type_t type;      /* required */
  int32_t num_factors;           /* entries of each array below: R/2 */
  double factor;                 /* s, at least 1: how many times longer; required unless the recipe states otherwise */
  int64_t original_max_position; /* M, at least 1: positions that the model was trained on; required */
  int64_t sequence_length;       /* L: the number of positions in use; 0: M */
  double alpha;                  /* at least 1; required */
  double mixed_b;                /* above 0; required */
  double beta_fast;              /* turns within M; at least beta_slow; 0: 32 */
  double beta_slow;              /* turns within M; above 0; 0: 1 */
  double attention_factor;       /* m itself, above 0; the fields of m's formula must then be 0; 0: the formula */
  double mscale;                 /* above 0; 0: 1. TeleChat3's slope of 0.07 is 0.7 */
  double mscale_all_dim;         /* above 0; 0: 0, g = 1. Hugging Face ignores one of the two without the other; leave
                                    both 0 for that. DeepSeek's softmax scale takes g(s, mscale_all_dim)^2 elsewhere */
  double low_freq_factor;        /* above 0; 0: 1 */
  double high_freq_factor;       /* at least low_freq_factor; 0: 4 */
  double partial_rotary_factor;  /* above 0, at most 1; 0: 1 */
  const double *short_factor;    /* [num_factors], each above 0 */
  const double *long_factor;     /* [num_factors], each above 0 */
  const double *pair_factors;    /* [num_factors], each above 0 */
} rope_scaling_t;

/* A rope_scaling_t with all members 0 except struct_size. */
#define ROPE_SCALING_INIT \
  { sizeof(rope_scaling_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL }

/* Writes to inv_freq_out the rotary_dim/2 frequencies in radians per position, and to *attention_scale_out the factor m
 * of cos and sin: rope_config_t's inv_freq and attention_scale. On failure it writes nothing. It runs on the host
 * alone. f is the double nearest to its value, except for rare near-ties; recipes add a few roundings of double to it.
 * INVALID_ARGUMENT: a NULL pointer; rotary_dim odd or outside 2 to 1024; theta below 1e-300, it or theta' above 1e300;
 * a field outside its range, missing, or set but not used; a result that is not finite. NOT_SUPPORTED: a type or flag
 * that this version does not have. */
ROPE_API rope_status_t rope_scaled_frequencies(int32_t rotary_dim, double theta, const rope_scaling_t *scaling,
                                               double *inv_freq_out, double *attention_scale_out);

/* ---- Position axes ---------------------------------------------------------------------------------------------- */

/* The position axis that turns each pair, from the section lists that multi-axis models publish. Below: R = rotary_dim,
 * P = R/2 pairs, i a pair, n[a] = section[a], sum = n[0] + n[1] + ... */
typedef int32_t rope_sections_type_t;
enum {
  /* The first n[0] pairs have axis 0, the next n[1] axis 1, and so on; sum = P. (mrope_section of Qwen2-VL;
   * xdrope_section of Hunyuan as its authors and vLLM apply it, four axes) */
  ROPE_SECTIONS_CHUNKED = 1,

  /* Three sections: axis 1 if i mod 3 = 1 and i < 3 n[1], axis 2 if i mod 3 = 2 and i < 3 n[2], else axis 0;
   * sum = P. (mrope_interleaved of Qwen3-VL) */
  ROPE_SECTIONS_INTERLEAVED = 2,

  /* Four sections, j = i mod sum: axis j mod 3 if j < 3 n[j mod 3], else axis 3. (IMROPE of llama.cpp) */
  ROPE_SECTIONS_IMROPE = 3,

  /* Three sections, height, width, time: of the first n[0] + n[1] pairs even ones have axis 1 and odd ones axis 2; the
   * last n[2] have axis 0, so that positions are (time, height, width); n[0] = n[1], sum = P. (Ernie 4.5 VL) */
  ROPE_SECTIONS_ERNIE = 4,

  /* CHUNKED, and the frequencies restart in each section: the j-th pair of section a has theta^(-j / n[a]). (2-D rope
   * of ChatGLM and OneFlow, with pair_block = R/2; image grids; video models with three axes) */
  ROPE_SECTIONS_RESTARTED = 5,

  /* Two sections, j = i mod sum: if j < n[0] axis 0 with theta^(-2j / P), else axis 1 with theta^(-2(j - n[0]) / P).
   * (VISION of llama.cpp with n_dims = P: the first two of its four sections) */
  ROPE_SECTIONS_VISION = 6
};

/* A section list and the rule that reads it. */
typedef struct rope_sections {
  uint32_t struct_size;                    /* sizeof(rope_sections_t) */
  uint32_t flags;                          /* 0 */
  rope_sections_type_t type;               /* required */
  int32_t num_sections;                    /* 1 to ROPE_MAX_POSITION_AXES, or the number that the type states */
  int32_t section[ROPE_MAX_POSITION_AXES]; /* in pairs, each at least 0, entries past num_sections 0; the sum above 0 */
} rope_sections_t;

/* A rope_sections_t with all members 0 except struct_size. */
#define ROPE_SECTIONS_INIT \
  { sizeof(rope_sections_t), 0, 0, 0, {0}, }

/* Writes to pair_axis_out the rotary_dim/2 axes of rope_config_t's pair_axis, and, unless it is NULL, to inv_freq_out
 * as many frequencies in radians per position: theta^(-2i/R) if the type does not restart them. It runs on the host
 * alone. On failure it writes nothing.
 * INVALID_ARGUMENT: a NULL pointer; rotary_dim odd or outside 2 to 1024; theta outside 1e-300 to 1e300; a section list
 * that breaks its type's rule; a frequency of VISION that is not finite. NOT_SUPPORTED: a type or flag that this
 * version does not have. */
ROPE_API rope_status_t rope_section_axes(int32_t rotary_dim, double theta, const rope_sections_t *sections,
                                         int32_t *pair_axis_out, double *inv_freq_out);

/* ---- SwiGLU ----------------------------------------------------------------------------------------------------- */

/* A gating: a checked config, and the data that calls derive from it. */
typedef struct swiglu_desc swiglu_desc_t;

/* The values that `limit` bounds. */
enum {
  SWIGLU_LIMIT_GATE = 0,      /* gate, before the activation (gpt-oss, DeepSeek V4); and up */
  SWIGLU_LIMIT_ACTIVATION = 1 /* the activation: min(gate * sigmoid(gate), limit) (Step 3.7); and up */
};

/* The activation: its factor s(g) of the gate, in the formula at swiglu_forward (Shazeer, arXiv:2002.05202; GELU:
 * Hendrycks and Gimpel, arXiv:1606.08415). */
enum {
  SWIGLU_ACTIVATION_SWIGLU = 0,     /* sigmoid(alpha * g) */
  SWIGLU_ACTIVATION_GEGLU_ERF = 1,  /* (1 + erf(g / sqrt(2))) / 2 */
  SWIGLU_ACTIVATION_GEGLU_TANH = 2, /* (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))) / 2 (Gemma) */
  SWIGLU_ACTIVATION_REGLU = 3       /* 1 if g > 0, else 0 */
};

/* Roundings of the product. */
enum {
  /* The activation is rounded to dtype before it is multiplied by up (torch, vLLM, Liger). With F16 and BF16 data
   * SwiGLU's is then g / (1 + exp(-alpha * g)), each operation rounded to fp32: on CUDA with the bits of
   * torch.nn.functional.silu; on the CPU at most 1 in 10^4 of them differ, by one step. A finite activation beyond the
   * largest number of dtype, which only a gate with a bias can have, becomes that number. The gradient of gate is that
   * of the activation without this rounding. */
  SWIGLU_PRODUCT_ROUND_ACTIVATION = 1
};

/* How written scales lie in memory. */
enum {
  SWIGLU_SCALE_LAYOUT_STRIDED = 0, /* by their strides */
  /* In tiles of 128 rows and 4 groups, as cuBLAS reads them. A group is 32 channels with scales of F8_E8M0, and 16
   * channels with scales of F8_E4M3. gate [.., M, d] has scales_out [.., 128 ceil(M/128), 4 ceil(G/4)] for the G groups
   * of a row: the axes before M are gate's, with any strides, and the last two are compact, so that each matrix of M
   * rows has tiles of its own. (d may be several axes.) The scale of row m and group k is byte
   *   (m / 128 * ceil(G/4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4     with quotients rounded down
   * of the matrix, whatever its index in scales_out. A call sets the padding, which is the scales of rows from M on and
   * of groups from G on, to 0, as TensorRT-LLM and flashinfer do. It does so with num_rows and expert_rows too, but the
   * scales of rows that those leave out keep their values. */
  SWIGLU_SCALE_LAYOUT_128X4 = 1
};

/* The choices of a descriptor, which select code, and the numbers of the formula at swiglu_forward. */
typedef struct swiglu_config {
  uint32_t struct_size;     /* sizeof(swiglu_config_t) */
  uint32_t flags;           /* 0 */
  rope_device_t device;     /* required */
  int32_t device_index;     /* CUDA ordinal; 0 for the CPU */
  rope_dtype_t dtype;       /* required: F32, F16, BF16 or F64; type of gate, up, out and their gradients */
  int32_t num_threads;      /* CPU: as in rope_config_t */
  double alpha;             /* factor inside the sigmoid; 0: 1 */
  double limit;             /* gate at most limit, up within +-limit; 0: none */
  double up_offset;         /* added to up; 0 */
  double out_scale;         /* factor of the output; 0: 1 */
  double gate_softcap;      /* the gate outside s becomes cap * tanh(gate / cap); 2^-126 to 2^126 (Kimi K3); 0: none */
  double up_softcap;        /* likewise for up, before up_offset; 0: none */
  int32_t limit_rule;       /* a SWIGLU_LIMIT_ value */
  int32_t activation;       /* a SWIGLU_ACTIVATION_ value; with another than SWIGLU alpha is 0 or 1 */
  int32_t product_rounding; /* SWIGLU_PRODUCT_ROUND_ACTIVATION or 0 */
  int32_t quant_rounding;   /* ROPE_QUANT_ROUND_ bits */
} swiglu_config_t;

/* A swiglu_config_t with all members 0 except struct_size. */
#define SWIGLU_CONFIG_INIT \
  { sizeof(swiglu_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Creates a descriptor, with the statuses of rope_desc_create. The six numbers are rounded to fp32, with dtype F64
 * taken as they are. In fp32 they must be finite, and only a number given as 0 may be 0; limit is not negative. gpt-oss
 * has alpha 1.702, limit 7, up_offset 1. */
ROPE_API rope_status_t swiglu_desc_create(const swiglu_config_t *config, swiglu_desc_t **desc_out);

/* Destroys a descriptor, with the rules of rope_desc_destroy. */
ROPE_API void swiglu_desc_destroy(swiglu_desc_t *desc);

/* Scales of outputs of 8 or 4 bits. Codes, their rounding, flags, the floor and the formulas of written scales are
 * those of rope_quant_args_t. out has the values of swiglu_forward, with ROPE_QUANT_ROUND_FIRST (F16 and BF16) rounded
 * to the descriptor's dtype first. With neither scale nor scales_out, codes are those of the values themselves. Rows
 * that are not written have no scales and raise nothing. Outputs of 8 or 4 bits from F64, and gradients of 4 bits, are
 * NOT_SUPPORTED. `scale` and the flags are for all outputs of a call.
 *
 * MXFP8 is an out of F8_E4M3 with scales_out F8_E8M0 [N, d/32], MXFP4 an out of F4_E2M1X2 with the same scales. NVFP4
 * is an out of F4_E2M1X2 with scales_out F8_E4M3 [N, d/16] and the global factor g in `scale`, as a rule 448 * 6 / amax
 * of the whole tensor. TransformerEngine (MXFP8), vLLM and flashinfer (NVFP4) round the values first. The formula of
 * NVFP4:
 *   scale = F8_E4M3(g * (amax / 6))     code = F4_E2M1(x * (g / scale)), 0 if scale is 0
 * vLLM and flashinfer have this formula with approximate reciprocals of 6, g and scale / g. Here quotients and products
 * are each rounded once, to nearest, so that the bits are the same on every device. */
typedef struct swiglu_quant_args {
  uint32_t struct_size; /* sizeof(swiglu_quant_args_t) */
  uint32_t flags;       /* ROPE_QUANT_FLAG_ values */
  double scale_floor;   /* as in rope_quant_args_t */
  /* Static: F32 [1], or [E] with experts, above 0, where the tensors are. With scales_out of F8_E4M3 it is their global
   * factor g, whatever the flags; if absent, g is 1. With other scales_out it is INVALID_ARGUMENT. */
  rope_tensor_t scale;
  /* Written, F32 or F8_E8M0, with F4_E2M1X2 also F8_E4M3: the first axes of gate, at least one, with expert_rows two,
   * and not all; then G groups of neighbouring channels of gate's other axes, counted with the last axis fastest. gate
   * [N, d] has [N, 1] for scales by row and [N, d/128] for groups of 128: the shape alone says how large a group is.
   * G may be split, [.., G/4, 4]. Any strides.
   * With F4_E2M1X2 a group has an even number of channels. SWIGLU_SCALE_LAYOUT_128X4 has shapes of its own. */
  rope_tensor_t scales_out;
  rope_tensor_t amax_out; /* F32 [1], as in rope_quant_args_t: of all values that become 8 or 4 bits */
  int32_t scale_layout;   /* of written scales: a SWIGLU_SCALE_LAYOUT_ value */
  int32_t reserved0;      /* 0 */
  /* Backward: written scales of a grad_gate and a grad_up of 8 bits, like scales_out for out. */
  rope_tensor_t grad_gate_scales_out, grad_up_scales_out;
} swiglu_quant_args_t;

/* A swiglu_quant_args_t with absent tensors and all other members 0 except struct_size. */
#define SWIGLU_QUANT_ARGS_INIT                                                                                       \
  {                                                                                                                  \
    sizeof(swiglu_quant_args_t), 0, 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, 0, 0, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT                                                                                             \
  }

/* Outputs of a call by column: once more as 8 bits, each with scales of its own, for a matrix product that sums over
 * rows, such as that of a weight's gradient (MXFP8 training: groups of 32 rows). Values, roundings, codes and scales
 * are those of swiglu_quant_args_t, except that a group has neighbouring rows instead of channels: entries of gate's
 * first axis, or with expert_rows of its second one. The shape of the scales alone says how many. With expert_offsets a
 * group may have rows of several experts, and one scale for all of them: offsets that are multiples of a group avoid
 * that. Rows that do not exist count for nothing, and a group of such rows has no scale. The outputs here share no
 * element with another tensor. A call may write each output in swiglu_args_t, here, or in both. It computes all of them
 * from one reading of its inputs if these are matrices of 16-bit data without further inputs, in groups of 32. */
typedef struct swiglu_column_args {
  uint32_t struct_size;   /* sizeof(swiglu_column_args_t) */
  uint32_t flags;         /* ROPE_QUANT_FLAG_POWER_OF_TWO or 0: of the scales here */
  double scale_floor;     /* as in rope_quant_args_t: of the scales here */
  int32_t scale_layout;   /* of the scales here: a SWIGLU_SCALE_LAYOUT_ value */
  int32_t reserved0;      /* 0 */
  rope_tensor_t amax_out; /* F32 [1], raised like that of `quant` */
  /* Outputs of 8 bits and gate's shape, with any strides: forward out, backward the two gradients. An output without
   * scales here has the static scale of `quant`: its codes are then those by row, in another place. */
  rope_tensor_t out, grad_gate, grad_up;
  /* F32 or F8_E8M0: gate's shape with G groups of rows instead of rows. G divides the number of rows: gate [N, d] has
   * [N/32, d]. Any strides. With SWIGLU_SCALE_LAYOUT_128X4 a row of the matrix is a channel: [128 ceil(d/128),
   * 4 ceil(G/4)] with d channels of a row and groups of 32 rows; with expert_rows [E, ..], a matrix for each expert. */
  rope_tensor_t scales_out, grad_gate_scales_out, grad_up_scales_out;
} swiglu_column_args_t;

/* A swiglu_column_args_t with absent tensors and all other members 0 except struct_size. */
#define SWIGLU_COLUMN_ARGS_INIT                                                                                       \
  {                                                                                                                   \
    sizeof(swiglu_column_args_t), 0, 0, 0, 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT                                                          \
  }

/* Further inputs. The kernel reads their values from these tensors when it runs.
 *
 * expert_offsets rise and lie within 0 to N. Row i has an expert if expert_offsets[0] <= i < expert_offsets[E]. A
 * bisection finds it: from lo = 0 and hi = E on, (lo + hi) / 2 replaces lo if its offset is at most i, else hi, until
 * hi is lo + 1; then lo is the expert. This also holds if offsets fall: an expert then has no rows, or a row has one of
 * several experts. A row is neither read nor written if it has no expert, if its expert has an offset outside 0 to N,
 * or if its row_index is below 0 or not below M. A bias of [E, d] with expert_offsets, and row_scale with row_index,
 * share no element with an output. */
typedef struct swiglu_input_args {
  uint32_t struct_size;             /* sizeof(swiglu_input_args_t) */
  uint32_t flags;                   /* 0 */
  rope_tensor_t gate_bias, up_bias; /* F32 or the descriptor's dtype, [d], or [E, d] with experts; added first */
  rope_tensor_t expert_rows;        /* I32/I64 [E] with gate [E, N, .., d]: the number of rows of each expert, clamped
                                       to 0 to N; the others are neither read nor written. Not together with num_rows;
                                       with a grad_row_scale, row_scale has at least the axes [E, N] */
  rope_tensor_t expert_offsets;     /* I32/I64 [E + 1], E at least 1, with gate [N, .., d]: expert e has the rows
                                       expert_offsets[e] to expert_offsets[e + 1] - 1. Not together with expert_rows or
                                       num_rows */
  rope_tensor_t row_index;          /* I32/I64 [N] with gate [N, .., d] and row_scale [M], any M: the factor of row i is
                                       row_scale[row_index[i]]. Not together with expert_rows */
} swiglu_input_args_t;

/* A swiglu_input_args_t with absent tensors and flags 0. */
#define SWIGLU_INPUT_ARGS_INIT                                                                              \
  {                                                                                                         \
    sizeof(swiglu_input_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, \
        ROPE_TENSOR_INIT                                                                                    \
  }

/* The operands of a call. gate, up, out, grad_out, grad_gate and grad_up have rank 1 to 4, one shape, and any strides
 * of their own. A packed [N, 2d] is two narrows, in either order; gate and up interleaved along the last axis are two
 * views of stride 2; alternating blocks of 32 are a view [N, d/32, 2, 32] and two selects.
 *
 * An output may be exactly any one of the inputs (same data and strides), grad_row_scale exactly row_scale, or share no
 * element with any other tensor. */
typedef struct swiglu_args {
  uint32_t struct_size;    /* sizeof(swiglu_args_t) */
  uint32_t flags;          /* ROPE_FLAG_ values */
  rope_tensor_t gate, up;  /* required */
  rope_tensor_t out;       /* forward: required unless `column` has it, of the descriptor's dtype, F8_E4M3, F8_E5M2 or
                              F4_E2M1X2 (d even, the last axis d/2; with num_rows rank 2 at least); with 8 or 4 bits it
                              shares no element with an input. Backward: if given, receives the output again (activation
                              checkpointing), of the descriptor's dtype */
  rope_tensor_t row_scale; /* a factor of the output for each row (a router's weight): F32 or the descriptor's dtype;
                              its axes are the first ones of gate, at least one and not all: [N] for gate [N, d] and
                              for [N, d/32, 32]; with row_index [M]. Absent: 1 */
  rope_tensor_t num_rows;  /* I32/I64 [1], where the tensors are: the number of entries of gate's first axis that exist,
                              read when the kernel runs and clamped to 0 to the axis's length; the others are neither
                              read nor written. Absent: all */
  rope_tensor_t grad_out;  /* backward: required; forward: absent */
  rope_tensor_t grad_gate, grad_up;   /* backward: an absent gradient is not computed; one of the three, or of `column`,
                                         is required; of the descriptor's dtype, F8_E4M3 or F8_E5M2. If one gradient
                                         has 8 bits, no output shares an element with an input */
  rope_tensor_t grad_row_scale;       /* shape and dtype of row_scale, which must be given; with row_index [N], where
                                         entry i is row i's gradient */
  const swiglu_quant_args_t *quant;   /* NULL: nothing is scaled; host memory, like the next two */
  const swiglu_input_args_t *input;   /* NULL: no bias and no experts */
  const swiglu_column_args_t *column; /* NULL: no further outputs */
} swiglu_args_t;

/* A swiglu_args_t with absent tensors and all other members 0 except struct_size. */
#define SWIGLU_ARGS_INIT                                                                                           \
  {                                                                                                                \
    sizeof(swiglu_args_t), 0, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT,              \
        ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, ROPE_TENSOR_INIT, NULL, NULL, NULL \
  }

/* Computes out for each element. With gate and up after their biases, g = min(gate, limit), u = up within +-limit,
 * s = s(g) of the activation, cap(x) = softcap * tanh(x / softcap), or x without a soft cap, and r = row_scale:
 *   out = out_scale * cap(g) * s * (cap(u) + up_offset) * r
 * With SWIGLU_LIMIT_ACTIVATION g is gate, and min(cap(g) * s, limit) replaces cap(g) * s. With an alpha other than 1,
 * alpha * g is rounded to fp32 (F64: fp64), which may add up to |alpha * g| ulp to the bound at the top of this file.
 * Finite products of r and (cap(u) + up_offset), or cap(g), beyond the largest number of that arithmetic become that
 * number, as do sums of finite gates or ups and their biases. Errors are those of rope_forward. */
ROPE_API rope_status_t swiglu_forward(const swiglu_desc_t *desc, const swiglu_args_t *args, rope_stream_t stream);

/* Computes the gradients, with a = cap(g) * s (or its limit). A prime marks a derivative. It is 0 where a limit cut
 * gate, up or the activation, and for ReGLU at 0:
 *   grad_gate      = grad_out * out_scale * (cap(u) + up_offset) * r * a'    SwiGLU: a' = s * (1 + alpha * g * (1 - s))
 *   grad_up        = grad_out * out_scale * a * cap'(u) * r
 *   grad_row_scale = sum over the row of grad_out * out_scale * a * (cap(u) + up_offset)
 * In fp32 s' of GeGLU by tanh is taken as 0 from g = 8.87 on, where it is below 2^-88. The error of the sum is at most
 * 12 ulp of the sum of its terms' magnitudes, plus the errors that alpha and soft caps add to each term. Finite terms,
 * their products and sums of some of them stop at the largest number. The placement of tensors changes no bit of the
 * sum. The gradient of a bias is the sum of that of gate, or of up, over the rows. Errors are those of rope_forward. */
ROPE_API rope_status_t swiglu_backward(const swiglu_desc_t *desc, const swiglu_args_t *args, rope_stream_t stream);

/* Describes in one line how swiglu_backward, if grad_out is given, or else swiglu_forward would run these arguments:
 * kernel, vector width, grid, and the bytes that must move, whatever the value of num_rows. Writes at most `size` bytes
 * to text, the last a 0; longer texts are cut (256 bytes hold all). Errors are those of the call that it describes;
 * INVALID_ARGUMENT also if text is NULL or size is 0. */
ROPE_API rope_status_t swiglu_explain(const swiglu_desc_t *desc, const swiglu_args_t *args, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* ROPE_ROPE_H */
