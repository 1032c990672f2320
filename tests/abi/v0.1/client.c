/* client.c - a program of the first release; frozen with the header beside it, it must build and run for ever
 *
 * It rotates q and k of a packed tensor, undoes that, gates, and differentiates: on the CPU, against the formulas.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS 5
#define Q_HEADS 3
#define K_HEADS 1
#define HEADS (Q_HEADS + 2 * K_HEADS)
#define HEAD_DIM 16
#define PAIRS (HEAD_DIM / 2)

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

static void expect(double found, double wanted, const char *what) {
  if (fabs(found - wanted) <= 1e-6) return;
  fprintf(stderr, "%s is %.9g instead of %.9g\n", what, found, wanted);
  exit(1);
}

static void check_rope(void) {
  static float data[TOKENS][HEADS][HEAD_DIM];
  const int64_t start = -7;
  rope_config_t config = {0};
  rope_desc_t *desc = NULL;
  rope_tensor_t qkv = {0};
  rope_args_t args = {0};
  int t, h, i;

  config.struct_size = sizeof(config);
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  config.layout = ROPE_LAYOUT_THD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = HEAD_DIM;
  config.theta = 10000.0;
  check(rope_desc_create(&config, &desc));

  for (t = 0; t < TOKENS; ++t) {
    for (h = 0; h < HEADS; ++h) {
      for (i = 0; i < PAIRS; ++i) data[t][h][i] = 1.0f;
    }
  }
  qkv.data = data;
  qkv.dtype = ROPE_DTYPE_F32;
  qkv.ndim = 3;
  qkv.shape[0] = TOKENS;
  qkv.shape[1] = HEADS;
  qkv.shape[2] = HEAD_DIM;
  args.struct_size = sizeof(args);
  args.position_offset = start;
  check(rope_tensor_narrow(&qkv, 1, 0, Q_HEADS, &args.q));
  check(rope_tensor_narrow(&qkv, 1, Q_HEADS, K_HEADS, &args.k));
  check(rope_forward(desc, &args, NULL));
  for (t = 0; t < TOKENS; ++t) {
    for (h = 0; h < HEADS; ++h) {
      for (i = 0; i < PAIRS; ++i) {
        const double angle = h < Q_HEADS + K_HEADS ? (double)(start + t) * pow(10000.0, -2.0 * i / HEAD_DIM) : 0.0;
        expect(data[t][h][i], cos(angle), "a rotated first channel");
        expect(data[t][h][i + PAIRS], sin(angle), "a rotated second channel");
      }
    }
  }
  check(rope_backward(desc, &args, NULL));
  expect(data[TOKENS - 1][0][0], 1.0, "a channel turned back");
  expect(data[TOKENS - 1][0][PAIRS], 0.0, "a channel turned back");

  config.head_dim = 63;
  rope_desc_destroy(desc);
  if (rope_desc_create(&config, &desc) != ROPE_STATUS_INVALID_ARGUMENT || desc != NULL) {
    fprintf(stderr, "head_dim 63 was not refused\n");
    exit(1);
  }
}

static void check_swiglu(void) {
  enum {
    N = 9
  };
  float gate[N], up[N], out[N], grad_out[N], grad_gate[N], grad_up[N];
  rope_tensor_t vector = {0};
  swiglu_config_t config = {0};
  swiglu_desc_t *desc = NULL;
  swiglu_args_t args = {0};
  int i;

  for (i = 0; i < N; ++i) {
    gate[i] = (float)(i - 4) * 0.5f;
    up[i] = (float)i * 0.25f;
    grad_out[i] = 1.0f - (float)i * 0.125f;
  }
  config.struct_size = sizeof(config);
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  check(swiglu_desc_create(&config, &desc));

  vector.dtype = ROPE_DTYPE_F32;
  vector.ndim = 1;
  vector.shape[0] = N;
  args.struct_size = sizeof(args);
  args.gate = args.up = args.out = vector;
  args.gate.data = gate;
  args.up.data = up;
  args.out.data = out;
  check(swiglu_forward(desc, &args, NULL));

  args.out.ndim = 0;
  args.out.data = NULL;
  args.out.dtype = 0;
  args.out.shape[0] = 0;
  args.grad_out = args.grad_gate = args.grad_up = vector;
  args.grad_out.data = grad_out;
  args.grad_gate.data = grad_gate;
  args.grad_up.data = grad_up;
  check(swiglu_backward(desc, &args, NULL));
  swiglu_desc_destroy(desc);

  for (i = 0; i < N; ++i) {
    const double s = 1.0 / (1.0 + exp(-(double)gate[i]));
    expect(out[i], gate[i] * s * up[i], "out");
    expect(grad_gate[i], grad_out[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s)), "grad_gate");
    expect(grad_up[i], grad_out[i] * gate[i] * s, "grad_up");
  }
}

int main(void) {
  int32_t devices = 0;
  check(rope_device_count(ROPE_DEVICE_CPU, &devices));
  check_rope();
  check_swiglu();
  printf("built for %d.%d.%d, run on: %s\n", ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR, ROPE_VERSION_PATCH,
         rope_build_info());
  return 0;
}
