// SPDX-License-Identifier: Apache-2.0
// prepared_case.hpp - the descriptor and the tensors of a case, ready for calls and checks
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "cases.hpp"
#include "memory.hpp"
#include "oracle.hpp"

namespace bench {

// The library returned NOT_SUPPORTED or NO_DEVICE.
struct NotServed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws NotServed, or std::runtime_error with the library's message.
void require(rope_status_t status);

class PreparedCase {
 public:
  virtual ~PreparedCase() = default;
  PreparedCase(const PreparedCase &) = delete;
  PreparedCase &operator=(const PreparedCase &) = delete;

  // The time to create the descriptor.
  double create_us() const { return create_us_; }
  // Creates a descriptor in addition to the case's, and destroys it.
  virtual void create_once() const = 0;
  // Runs the call on the buffers of set number `set`.
  virtual void call(int set, rope_stream_t stream) const = 0;
  // The separate calls that the call replaces, for cases that compare the two.
  virtual void call_separately(int /*set*/, rope_stream_t /*stream*/) const {}
  // The text of rope_explain or swiglu_explain.
  virtual std::string explanation() const = 0;
  // Poisons the outputs of set 0, runs it, and compares sampled tokens or rows with the oracle; likewise for the
  // separate calls. Throws if the errors exceed those permitted for the type.
  virtual Accuracy check() const = 0;

 protected:
  PreparedCase() = default;
  double create_us_ = 0;
};

// `sets` independent sets of tensors in `memory`. Throws NotServed or std::runtime_error.
std::unique_ptr<PreparedCase> prepare(const Case &item, Memory &memory, int sets);

}  // namespace bench
