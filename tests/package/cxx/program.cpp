// SPDX-License-Identifier: Apache-2.0
// Rotates three queries in place; a unique_ptr owns the descriptor.
#include <rope/rope.h>

#include <cstdio>
#include <memory>
#include <vector>

struct DestroyDesc {
  void operator()(rope_desc_t *desc) const { rope_desc_destroy(desc); }
};
using Desc = std::unique_ptr<rope_desc_t, DestroyDesc>;

Desc make_desc(const rope_config_t &config) {
  rope_desc_t *desc = nullptr;
  rope_desc_create(&config, &desc);  // NULL if it fails
  return Desc(desc);
}

int main() {
  rope_config_t config = ROPE_CONFIG_INIT;
  config.device = ROPE_DEVICE_CPU;
  config.dtype = ROPE_DTYPE_F32;
  config.layout = ROPE_LAYOUT_THD;
  config.style = ROPE_STYLE_HALF;
  config.head_dim = 64;
  config.theta = 10000.0;
  const Desc desc = make_desc(config);

  std::vector<float> q(3 * 64, 1.0f);
  rope_args_t args = ROPE_ARGS_INIT;
  args.q = {q.data(), ROPE_DTYPE_F32, 3, 0, {3, 1, 64}, {}};
  if (!desc || rope_forward(desc.get(), &args, nullptr) != ROPE_STATUS_SUCCESS) {
    std::fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }
  std::printf("token 2: the first pair is (%9.6f, %9.6f)\n", q[2 * 64], q[2 * 64 + 32]);
  return 0;
}
