/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a loss through RoPE, against finite differences, in fp64.
 *
 * rope_backward is the transpose: with YaRN's attention_scale it is not the inverse.
 */
#include <math.h>
#include <rope/rope.h>
#include <stdio.h>
#include <stdlib.h>

#define SEQUENCE 6
#define HEADS 2
#define HEAD_DIM 16
#define ELEMENTS (SEQUENCE * HEADS * HEAD_DIM)

static void check(rope_status_t status) {
  if (status == ROPE_STATUS_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", rope_status_name(status), rope_last_error());
  exit(1);
}

static rope_tensor_t tensor(double *data) {
  return (rope_tensor_t){.data = data, .dtype = ROPE_DTYPE_F64, .ndim = 4, .shape = {1, SEQUENCE, HEADS, HEAD_DIM}};
}

static void rotate(const rope_desc_t *desc, double *in, double *out) {
  rope_args_t args = {.struct_size = sizeof(args), .q = tensor(in), .q_out = tensor(out)};
  check(rope_forward(desc, &args, NULL));
}

/* The sum of sin of every output; its gradient is cos of them. */
static double loss(const rope_desc_t *desc, double *x) {
  static double out[ELEMENTS];
  double sum = 0.0;
  rotate(desc, x, out);
  for (int i = 0; i < ELEMENTS; ++i) sum += sin(out[i]);
  return sum;
}

int main(void) {
  static double x[ELEMENTS], out[ELEMENTS], grad_out[ELEMENTS], grad_x[ELEMENTS];
  rope_config_t config = {.struct_size = sizeof(config),
                          .device = ROPE_DEVICE_CPU,
                          .dtype = ROPE_DTYPE_F64,
                          .layout = ROPE_LAYOUT_BSHD,
                          .style = ROPE_STYLE_HALF,
                          .head_dim = HEAD_DIM,
                          .rotary_dim = HEAD_DIM / 2, /* the other channels pass through */
                          .theta = 10000.0,
                          .attention_scale = 1.2};
  rope_desc_t *desc;
  check(rope_desc_create(&config, &desc));
  for (int i = 0; i < ELEMENTS; ++i) x[i] = cos(1.3 * i);

  rotate(desc, x, out);
  for (int i = 0; i < ELEMENTS; ++i) grad_out[i] = cos(out[i]);
  /* q receives the gradients of the outputs, q_out those of the inputs. */
  rope_args_t args = {.struct_size = sizeof(args), .q = tensor(grad_out), .q_out = tensor(grad_x)};
  check(rope_backward(desc, &args, NULL));

  double worst = 0.0;
  const double step = 1e-5;
  for (int i = 0; i < ELEMENTS; ++i) {
    const double value = x[i];
    x[i] = value + step;
    const double above = loss(desc, x);
    x[i] = value - step;
    const double below = loss(desc, x);
    x[i] = value;
    worst = fmax(worst, fabs((above - below) / (2 * step) - grad_x[i]));
  }
  rope_desc_destroy(desc);
  printf("gradients are within %.1e of finite differences\n", worst);
  return worst < 1e-8 ? 0 : 1;
}
