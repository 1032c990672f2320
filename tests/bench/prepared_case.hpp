// prepared_case.hpp - the descriptor and the tensors of a case, ready to be called and checked
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "cases.hpp"
#include "memory.hpp"
#include "oracle.hpp"

namespace bench {

// The library said NOT_SUPPORTED or NO_DEVICE.
struct NotServed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws NotServed, or std::runtime_error with the library's words.
void require(rope_status_t status);

class PreparedCase {
 public:
  virtual ~PreparedCase() = default;
  PreparedCase(const PreparedCase &) = delete;
  PreparedCase &operator=(const PreparedCase &) = delete;

  // What creating the descriptor took.
  double create_us() const { return create_us_; }
  // Makes a descriptor beside the one that the case has, and destroys it.
  virtual void create_once() const = 0;
  // Buffers of set number `set`.
  virtual void call(int set, rope_stream_t stream) const = 0;
  // The calls that the one replaces, for a case beside them.
  virtual void call_separately(int /*set*/, rope_stream_t /*stream*/) const {}
  // What rope_explain or swiglu_explain says.
  virtual std::string explanation() const = 0;
  // Poisons the outputs of set 0, runs it, and compares sampled tokens or rows with the oracle; so with the separate
  // calls. Throws where the results are further off than the type allows.
  virtual Accuracy check() const = 0;

 protected:
  PreparedCase() = default;
  double create_us_ = 0;
};

// `sets` independent sets of tensors in `memory`. Throws NotServed or std::runtime_error.
std::unique_ptr<PreparedCase> prepare(const Case &item, Memory &memory, int sets);

}  // namespace bench
