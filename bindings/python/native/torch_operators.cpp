// SPDX-License-Identifier: Apache-2.0
// torch_operators.cpp - the kernels of torch.ops.librope for CPU and CUDA, over the stable C ABI of libtorch
//
// This file neither includes nor links torch. It declares the part of torch's ABI that it uses, and finds it in the
// libtorch that the process has loaded. One file therefore serves every torch from 2.10 on, with CUDA and without. The
// schemas, the fake kernels and the derivatives are in librope/_torch_operators.py.
#include <dlfcn.h>
#include <rope/rope.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace {

// ---- What is used of other libraries ----

// torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h
struct Tensor;   // AtenTensorOpaque
struct String;   // StringOpaque
struct Library;  // TorchLibraryOpaque
using Value = uint64_t;
using Kernel = void(Value *stack, uint64_t num_arguments, uint64_t num_results);

// Each returns an int32_t: a number, or whether it failed.
#define FOR_TORCH_FUNCTIONS(DO)                                                                                   \
  DO(aoti_torch_device_type_cpu, ())                                                                              \
  DO(aoti_torch_device_type_cuda, ())                                                                             \
  DO(aoti_torch_dtype_float32, ())                                                                                \
  DO(aoti_torch_dtype_float16, ())                                                                                \
  DO(aoti_torch_dtype_bfloat16, ())                                                                               \
  DO(aoti_torch_dtype_float64, ())                                                                                \
  DO(aoti_torch_dtype_int32, ())                                                                                  \
  DO(aoti_torch_dtype_int64, ())                                                                                  \
  DO(aoti_torch_dtype_uint8, ())                                                                                  \
  DO(aoti_torch_dtype_float8_e4m3fn, ())                                                                          \
  DO(aoti_torch_dtype_float8_e5m2, ())                                                                            \
  DO(aoti_torch_get_dim, (Tensor *, int64_t *))                                                                   \
  DO(aoti_torch_get_sizes, (Tensor *, int64_t **))                                                                \
  DO(aoti_torch_get_strides, (Tensor *, int64_t **))                                                              \
  DO(aoti_torch_get_dtype, (Tensor *, int32_t *))                                                                 \
  DO(aoti_torch_get_device_type, (Tensor *, int32_t *))                                                           \
  DO(aoti_torch_get_device_index, (Tensor *, int32_t *))                                                          \
  DO(torch_get_const_data_ptr, (Tensor *, const void **))                                                         \
  DO(torch_get_mutable_data_ptr, (Tensor *, void **))                                                             \
  DO(aoti_torch_empty_strided, (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Tensor **)) \
  DO(aoti_torch_zero_, (Tensor *))                                                                                \
  DO(aoti_torch_new_uninitialized_tensor, (Tensor **))                                                            \
  DO(aoti_torch_delete_tensor_object, (Tensor *))                                                                 \
  DO(torch_get_num_threads, (uint32_t *))                                                                         \
  DO(torch_string_length, (String *, size_t *))                                                                   \
  DO(torch_string_c_str, (String *, const char **))                                                               \
  DO(torch_delete_string, (String *))                                                                             \
  DO(aoti_torch_library_init_impl, (const char *, const char *, const char *, uint32_t, Library **))              \
  DO(torch_library_impl, (Library *, const char *, Kernel *, uint64_t))                                           \
  DO(aoti_torch_delete_library_object, (Library *))

// librope's functions, as librope/_torch_operators.py passes them.
struct RopeFunctions {
  decltype(&rope_last_error) last_error;
  decltype(&rope_desc_create) create_rope;
  decltype(&rope_forward) forward_rope;
  decltype(&rope_backward) backward_rope;
  decltype(&swiglu_desc_create) create_swiglu;
  decltype(&swiglu_forward) forward_swiglu;
  decltype(&swiglu_backward) backward_swiglu;
  decltype(&rope_desc_destroy) destroy_rope;
  decltype(&swiglu_desc_destroy) destroy_swiglu;
};
const RopeFunctions *rope;

constexpr uint64_t kTorch_2_10 = (uint64_t{2} << 56) | (uint64_t{10} << 48);  // the kernels follow its conventions

struct {
#define DECLARE(name, parameters) int32_t(*name) parameters;
  FOR_TORCH_FUNCTIONS(DECLARE)
#undef DECLARE
  // NULL before torch 2.13, which frees what it allocated by operator new.
  int32_t (*torch_delete_stable_ivalue)(Value *);
  const char *(*torch_exception_get_what_without_backtrace)();
  int32_t (*aoti_torch_dtype_float8_e8m0fnu)();  // NULL before torch 2.12
  int32_t (*aoti_torch_dtype_float4_e2m1fn_x2)();
} torch;

template <typename Function>
bool find(void *library, const char *name, Function **function) {
  *function = reinterpret_cast<Function *>(dlsym(library, name));
  return *function != nullptr;
}

// ---- Failures ----

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char *format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  throw std::runtime_error(text);
}

void check_torch(int32_t failed, const char *function) {
  if (failed == 0) return;
  if (torch.torch_exception_get_what_without_backtrace == nullptr) fail("%s of torch failed", function);
  fail("%s of torch failed: %s", function, torch.torch_exception_get_what_without_backtrace());
}
#define CALL_TORCH(function, ...) check_torch(torch.function(__VA_ARGS__), #function)

void check_rope(rope_status_t status) {
  if (status != ROPE_STATUS_SUCCESS) throw std::runtime_error(rope->last_error());
}

// ---- Descriptors by their keys ----

// A rope_desc_t or swiglu_desc_t. A call holds it until it returns, even if the table drops it meanwhile.
using Descriptor = std::shared_ptr<void>;

struct Device {
  rope_device_t kind;
  int32_t index;
  int32_t num_threads;  // torch's number for the calling thread; 0 on CUDA
};

template <typename Text>
struct Place {  // a descriptor's place in the table
  int32_t kind, index, num_threads;
  Text text;
};

struct IsBefore {
  using is_transparent = void;
  template <typename A, typename B>
  bool operator()(const Place<A> &a, const Place<B> &b) const {
    if (a.kind != b.kind) return a.kind < b.kind;
    if (a.index != b.index) return a.index < b.index;
    if (a.num_threads != b.num_threads) return a.num_threads < b.num_threads;
    return std::string_view(a.text) < std::string_view(b.text);
  }
};

struct KeptDescriptor {
  Descriptor desc;
  std::atomic<uint64_t> last_use{0};  // num_made at that time
};

// More than a model needs, in less than 2 MB. A program may make new descriptors forever, for example one for each
// length: the least recently used one is dropped, and its key makes it again.
constexpr size_t kMaxDescriptors = 256;

// The table lives as long as the process: other threads may call while the process ends. Its lock also guards num_made.
std::shared_mutex descriptors_lock;
using Descriptors = std::map<Place<std::string>, KeptDescriptor, IsBefore>;
Descriptors &descriptors = *new Descriptors;
uint64_t num_made;

constexpr size_t kMaxConfigSize = 4096;  // of every struct of <rope/rope.h>

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::string bytes_of(std::string_view digits, const char *function) {
  std::string bytes(digits.size() / 2, '\0');
  for (size_t i = 0; i < digits.size(); i += 2) {
    const int high = digit(digits[i]), low = i + 1 < digits.size() ? digit(digits[i + 1]) : -1;
    if (high < 0 || low < 0) fail("%s: desc is not made of bytes in hexadecimal digits", function);
    bytes[i / 2] = static_cast<char>(16 * high + low);
  }
  return bytes;
}

// A config of any size that the library may have. Bytes that the key lacks are 0.
template <typename Config>
union ConfigBuffer {
  Config config;
  char bytes[kMaxConfigSize];
};

// Reads the config at the beginning of a key, for the device; returns the number of its bytes. first_size: the size
// that this version reads.
template <typename Config>
size_t read_config(const char *function, const std::string &bytes, size_t first_size, const Device &device,
                   ConfigBuffer<Config> *buffer) {
  memset(buffer, 0, sizeof *buffer);
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) memcpy(&size, bytes.data(), sizeof size);
  if (size < first_size || size > kMaxConfigSize || size > bytes.size()) {
    fail("%s: desc has %zu bytes, and a config of %u: it is cut off", function, bytes.size(), size);
  }
  memcpy(buffer->bytes, bytes.data(), size);
  Config &config = buffer->config;
  const bool is_for_kind = config.device == 0 || config.device == device.kind;
  if (!is_for_kind || (config.device != 0 && config.device_index >= 0 && config.device_index != device.index)) {
    fail("%s: its tensors are on %s %d: desc is for another device", function,
         device.kind == ROPE_DEVICE_CPU ? "CPU" : "CUDA device", device.index);
  }
  config.device = device.kind;
  config.device_index = device.index;
  if (config.num_threads == 0 && device.num_threads != 0) {
    config.num_threads = device.num_threads;
    config.struct_size = std::max(size, static_cast<uint32_t>(sizeof config));  // the field may be behind the bytes
  }
  return size;
}

// Takes the next array of the key. It exists if its pointer in the config is not NULL.
template <typename Number>
const Number *take_array(const char **next, const char *end, const Number *marker, size_t count, std::string *storage,
                         bool *is_cut) {
  if (marker == nullptr) return nullptr;
  if (static_cast<size_t>(end - *next) / sizeof(Number) < count) {
    *is_cut = true;
    return nullptr;
  }
  storage->assign(*next, count * sizeof(Number));
  *next += storage->size();
  return reinterpret_cast<const Number *>(storage->data());
}

constexpr std::string_view kRopePrefix = "rope:", kSwigluPrefix = "swiglu:";

Descriptor make_rope(const char *function, std::string_view key, const Device &device) {
  const std::string bytes = bytes_of(key.substr(kRopePrefix.size()), function);
  ConfigBuffer<rope_config_t> buffer;
  const size_t size = read_config(function, bytes, offsetof(rope_config_t, num_axes), device, &buffer);
  rope_config_t &config = buffer.config;
  const int32_t channels = config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
  const size_t num_pairs = channels > 0 ? static_cast<size_t>(channels) / 2 : 0;
  const char *next = bytes.data() + size, *end = bytes.data() + bytes.size();
  std::string frequencies, axes;
  bool is_cut = false;
  config.inv_freq = take_array(&next, end, config.inv_freq, num_pairs, &frequencies, &is_cut);
  config.pair_axis = take_array(&next, end, config.pair_axis, num_pairs, &axes, &is_cut);
  if (is_cut || next != end) {
    fail("%s: desc has %zu bytes behind its config, which do not fit %zu pairs", function, bytes.size() - size,
         num_pairs);
  }
  rope_desc_t *desc = nullptr;
  check_rope(rope->create_rope(&config, &desc));
  return {desc, rope->destroy_rope};
}

Descriptor make_swiglu(const char *function, std::string_view key, const Device &device) {
  const std::string bytes = bytes_of(key.substr(kSwigluPrefix.size()), function);
  ConfigBuffer<swiglu_config_t> buffer;
  const size_t size = read_config(function, bytes, offsetof(swiglu_config_t, dtype), device, &buffer);
  if (size != bytes.size()) fail("%s: desc has %zu bytes behind its config", function, bytes.size() - size);
  swiglu_desc_t *desc = nullptr;
  check_rope(rope->create_swiglu(&buffer.config, &desc));
  return {desc, rope->destroy_swiglu};
}

// Returns NULL if the descriptor is not in the table. The caller holds the lock, shared or not.
Descriptor find_kept(const Place<std::string_view> &place) {
  const auto found = descriptors.find(place);
  if (found == descriptors.end()) return nullptr;
  found->second.last_use.store(num_made, std::memory_order_relaxed);
  return found->second.desc;
}

// Puts the descriptor into the table and returns it, or the one that another thread has put there since the caller
// looked. *dropped: what left the table. It is destroyed without the lock.
Descriptor keep(const Place<std::string_view> &place, const Descriptor &made, Descriptor *dropped) {
  std::unique_lock<std::shared_mutex> lock(descriptors_lock);
  if (Descriptor kept = find_kept(place)) return kept;
  if (descriptors.size() == kMaxDescriptors) {
    const auto oldest = std::min_element(descriptors.begin(), descriptors.end(), [](const auto &a, const auto &b) {
      return a.second.last_use.load(std::memory_order_relaxed) < b.second.last_use.load(std::memory_order_relaxed);
    });
    *dropped = std::move(oldest->second.desc);
    descriptors.erase(oldest);
  }
  KeptDescriptor &entry = descriptors[{place.kind, place.index, place.num_threads, std::string(place.text)}];
  entry.desc = made;
  entry.last_use = ++num_made;
  return made;
}

// All operators share the table. A descriptor is made without its lock: on CUDA that loads kernels, and calls with other
// descriptors go on meanwhile.
Descriptor find_descriptor(const char *function, std::string_view prefix, std::string_view key, const Device &device) {
  if (key.substr(0, prefix.size()) != prefix) fail("%s: desc does not begin with \"%s\"", function, prefix.data());
  const Place<std::string_view> place = {device.kind, device.index, device.num_threads, key};
  {
    std::shared_lock<std::shared_mutex> lock(descriptors_lock);
    if (Descriptor kept = find_kept(place)) return kept;
  }
  const Descriptor made = prefix == kRopePrefix ? make_rope(function, key, device) : make_swiglu(function, key, device);
  Descriptor dropped;
  return keep(place, made, &dropped);
}

// ---- Tensors ----

constexpr int kMaxAxes = 4;
constexpr uint64_t kMaxArguments = 47;  // the number of step's arguments
constexpr int kMaxDtypes = 64;
rope_dtype_t rope_dtypes[kMaxDtypes];  // by torch's number; 0: none
int32_t torch_cpu, torch_cuda;

// The arguments of a kernel, in the order of the schema. The kernel owns them.
class Arguments {
 public:
  Arguments(Value *stack, uint64_t given, uint64_t expected) : next_(stack) {
    if (given != expected || given > kMaxArguments)
      fail("librope's operators are of another version than librope_torch.so");
  }
  Arguments(const Arguments &) = delete;
  ~Arguments() {
    for (int i = 0; i < num_tensors_; ++i) torch.aoti_torch_delete_tensor_object(tensors_[i]);
    if (text_ != nullptr) torch.torch_delete_string(text_);
  }

  std::string_view text() {
    text_ = reinterpret_cast<String *>(*next_++);
    const char *data = nullptr;
    size_t length = 0;
    CALL_TORCH(torch_string_length, text_, &length);
    CALL_TORCH(torch_string_c_str, text_, &data);
    return {data, length};
  }
  Tensor *tensor() { return tensors_[num_tensors_++] = reinterpret_cast<Tensor *>(*next_++); }
  Tensor *optional_tensor() {
    Value *box = reinterpret_cast<Value *>(*next_++);
    if (box == nullptr) return nullptr;
    Tensor *tensor = tensors_[num_tensors_++] = reinterpret_cast<Tensor *>(*box);
    if (torch.torch_delete_stable_ivalue != nullptr) {
      torch.torch_delete_stable_ivalue(box);
    } else {
      delete box;
    }
    return tensor;
  }
  int64_t integer() { return static_cast<int64_t>(*next_++); }
  double number() {
    double value;
    memcpy(&value, next_++, sizeof value);
    return value;
  }
  bool boolean() { return static_cast<uint8_t>(*next_++) != 0; }

 private:
  Value *next_;
  String *text_ = nullptr;
  int num_tensors_ = 0;
  Tensor *tensors_[kMaxArguments];
};

// New tensors, the results of a kernel. They are freed if the kernel fails.
class Results {
 public:
  Results() = default;
  Results(const Results &) = delete;
  ~Results() {
    for (int i = 0; i < count_; ++i) torch.aoti_torch_delete_tensor_object(tensors_[i]);
  }
  Tensor *add(Tensor *tensor) { return tensors_[count_++] = tensor; }
  void add_absent() {
    Tensor *tensor = nullptr;
    CALL_TORCH(aoti_torch_new_uninitialized_tensor, &tensor);
    add(tensor);
  }
  void move_to(Value *stack) {
    for (int i = 0; i < count_; ++i) stack[i] = reinterpret_cast<Value>(tensors_[i]);
    count_ = 0;
  }

 private:
  int count_ = 0;
  Tensor *tensors_[4];
};

// Reads the tensors of one call.
class Reader {
 public:
  Reader(const char *function, const char *field, Tensor *first) : function_(function) {
    int32_t type = 0;
    CALL_TORCH(aoti_torch_get_device_type, first, &type);
    if (type != torch_cpu && type != torch_cuda) fail("%s: %s: it is neither on a CPU nor on CUDA", function, field);
    device_.kind = type == torch_cuda ? ROPE_DEVICE_CUDA : ROPE_DEVICE_CPU;
    device_.index = index_of(first, device_.kind);
    device_.num_threads = 0;
    if (device_.kind == ROPE_DEVICE_CPU) {
      uint32_t count = 0;
      CALL_TORCH(torch_get_num_threads, &count);
      device_.num_threads = static_cast<int32_t>(count);
    }
  }

  const char *function() const { return function_; }
  const Device &device() const { return device_; }

  // An absent tensor leaves an absent view.
  void read(rope_tensor_t *view, const char *field, Tensor *x) const {
    if (x == nullptr) return;
    read_axes(view, field, x);
    const void *data = nullptr;
    CALL_TORCH(torch_get_const_data_ptr, x, &data);
    view->data = const_cast<void *>(data);
  }
  void read_written(rope_tensor_t *view, const char *field, Tensor *x) const {
    if (x == nullptr) return;
    read_axes(view, field, x);
    CALL_TORCH(torch_get_mutable_data_ptr, x, &view->data);
  }

  // Makes torch.empty_like(x), or zeros_like, of the tensor that `like` shows; *view shows the new one.
  Tensor *make(const rope_tensor_t &like, Tensor *x, bool is_zeroed, rope_tensor_t *view) const {
    *view = like;
    if (!is_dense(like)) compact_strides(like, view->stride);
    int32_t dtype = 0;
    CALL_TORCH(aoti_torch_get_dtype, x, &dtype);
    return make_strided(dtype, is_zeroed, view);
  }

  // Makes zeros of F32 or F64, [rows, columns]; *view shows them.
  Tensor *make_zeros(rope_dtype_t dtype, int64_t rows, int64_t columns, rope_tensor_t *view) const {
    *view = {};
    view->dtype = dtype;
    view->ndim = 2;
    view->flags = ROPE_TENSOR_STRIDED;
    view->shape[0] = rows;
    view->shape[1] = columns;
    view->stride[0] = columns;
    view->stride[1] = 1;
    return make_strided(dtype == ROPE_DTYPE_F64 ? torch.aoti_torch_dtype_float64() : torch.aoti_torch_dtype_float32(),
                        true, view);
  }

  rope_stream_t stream() const {
    if (device_.kind == ROPE_DEVICE_CPU) return nullptr;
    using Function = int32_t(int32_t, void **);
    static Function *const current_stream = [] {  // only a torch with CUDA has it
      Function *found = nullptr;
      void *library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
      if (library != nullptr) find(library, "aoti_torch_get_current_cuda_stream", &found);
      return found;
    }();
    if (current_stream == nullptr) fail("%s: this torch has no aoti_torch_get_current_cuda_stream", function_);
    void *stream = nullptr;
    check_torch(current_stream(device_.index, &stream), "aoti_torch_get_current_cuda_stream");
    return static_cast<rope_stream_t>(stream);
  }

 private:
  // Makes a tensor with the view's shape and strides, and sets the view's data to its data.
  Tensor *make_strided(int32_t dtype, bool is_zeroed, rope_tensor_t *view) const {
    Tensor *made = nullptr;
    CALL_TORCH(aoti_torch_empty_strided, view->ndim, view->shape, view->stride, dtype,
               device_.kind == ROPE_DEVICE_CUDA ? torch_cuda : torch_cpu, device_.index, &made);
    view->data = nullptr;
    int32_t failed = is_zeroed ? torch.aoti_torch_zero_(made) : 0;
    if (failed == 0) failed = torch.torch_get_mutable_data_ptr(made, &view->data);
    if (failed != 0) torch.aoti_torch_delete_tensor_object(made);
    check_torch(failed, is_zeroed ? "zeros" : "empty");
    return made;
  }

  static int32_t index_of(Tensor *x, rope_device_t kind) {
    int32_t index = 0;
    if (kind == ROPE_DEVICE_CUDA) CALL_TORCH(aoti_torch_get_device_index, x, &index);
    return index;
  }

  void read_axes(rope_tensor_t *view, const char *field, Tensor *x) const {
    int32_t type = 0, dtype = 0;
    CALL_TORCH(aoti_torch_get_device_type, x, &type);
    const rope_device_t kind = type == torch_cuda ? ROPE_DEVICE_CUDA : type == torch_cpu ? ROPE_DEVICE_CPU : 0;
    if (kind != device_.kind || index_of(x, kind) != device_.index) {
      fail("%s: %s: it is on another device than the first tensor of the call", function_, field);
    }
    CALL_TORCH(aoti_torch_get_dtype, x, &dtype);
    view->dtype = dtype >= 0 && dtype < kMaxDtypes ? rope_dtypes[dtype] : 0;
    if (view->dtype == 0) fail("%s: %s: librope has no such dtype", function_, field);
    int64_t ndim = 0, *shape = nullptr, *stride = nullptr;
    CALL_TORCH(aoti_torch_get_dim, x, &ndim);
    if (ndim < 1 || ndim > kMaxAxes) {
      fail("%s: %s: it has %d axes: librope takes 1 to %d", function_, field, static_cast<int>(ndim), kMaxAxes);
    }
    CALL_TORCH(aoti_torch_get_sizes, x, &shape);
    CALL_TORCH(aoti_torch_get_strides, x, &stride);
    view->ndim = static_cast<uint16_t>(ndim);
    view->flags = ROPE_TENSOR_STRIDED;
    for (int i = 0; i < ndim; ++i) {
      view->shape[i] = shape[i];
      view->stride[i] = stride[i];
    }
  }

  // Whether the elements fill one piece of memory, each element of it once.
  static bool is_dense(const rope_tensor_t &x) {
    int64_t stride = 1;
    bool is_done[kMaxAxes] = {};
    for (int left = x.ndim; left > 0; --left) {
      int i = 0;
      while (i < x.ndim && (is_done[i] || (x.shape[i] > 1 && x.stride[i] != stride))) ++i;
      if (i == x.ndim) return false;
      is_done[i] = true;
      if (x.shape[i] > 1) stride *= x.shape[i];
    }
    return true;
  }

  // torch's rule orders axes by strides, and axes with equal strides by length. A stride of 0 decides nothing.
  static bool must_swap(const rope_tensor_t &x, int inner, int outer, bool *is_settled) {
    const int64_t a = x.stride[inner], b = x.stride[outer];
    *is_settled = a != 0 && b != 0 && a < b;
    return a != 0 && b != 0 && (a > b || (a == b && x.shape[inner] > x.shape[outer]));
  }

  static void compact_strides(const rope_tensor_t &x, int64_t *stride) {
    int order[kMaxAxes];  // from the innermost axis
    for (int i = 0; i < x.ndim; ++i) {
      order[i] = x.ndim - 1 - i;
      int at = i;
      bool is_settled = false;
      for (int j = i - 1; j >= 0 && !is_settled; --j) {
        if (must_swap(x, order[j], order[at], &is_settled)) {
          const int axis = order[j];
          order[j] = order[at];
          order[at] = axis;
          at = j;
        }
      }
    }
    int64_t next = 1;
    for (int i = 0; i < x.ndim; ++i) {
      stride[order[i]] = next;
      if (x.shape[order[i]] > 1) next *= x.shape[order[i]];
    }
  }

  const char *function_;
  Device device_;
};

// ---- RoPE ----

// Bits of `flags` above those of rope_args_t, which are the lower half.
constexpr int64_t kArgsFlags = 0xFFFF, kSkipSlot0 = 0x10000, kHasNorm = 0x20000, kScaleMultiplies = 0x40000,
                  kPowerOfTwo = 0x80000;

// The operands that RoPE's operators have behind q, k, v and their outputs.
struct Operands {
  bool is_backward;
  Tensor *positions, *start_positions, *cu_seqlens, *cos, *sin, *angles;
  int64_t position_offset, flags, table_rows;

  explicit Operands(Arguments *arguments) : Operands(arguments->boolean(), arguments) {}
  Operands(bool goes_back, Arguments *arguments) : is_backward(goes_back), positions(arguments->optional_tensor()) {
    position_offset = arguments->integer();
    flags = arguments->integer();
    start_positions = arguments->optional_tensor();
    cu_seqlens = arguments->optional_tensor();
    cos = arguments->optional_tensor();
    sin = arguments->optional_tensor();
    angles = arguments->optional_tensor();
    table_rows = arguments->integer();
  }

  void fill(const Reader &reader, rope_args_t *args) const {
    reader.read(&args->positions, "positions", positions);
    reader.read(&args->start_positions, "start_positions", start_positions);
    reader.read(&args->cu_seqlens, "cu_seqlens", cu_seqlens);
    reader.read(&args->cos, "cos", cos);
    reader.read(&args->sin, "sin", sin);
    reader.read(&args->angles, "angles", angles);
    if ((flags & ~(kArgsFlags | kSkipSlot0 | kHasNorm | kScaleMultiplies | kPowerOfTwo)) != 0)
      fail("%s: flags has unknown bits", reader.function());
    args->flags = static_cast<uint32_t>(flags & kArgsFlags);
    args->position_offset = position_offset;
    if (table_rows != static_cast<int32_t>(table_rows)) fail("%s: table_rows is out of range", reader.function());
    args->table_rows = static_cast<int32_t>(table_rows);
  }

  void run(const Descriptor &desc, const rope_args_t &args, const Reader &reader) const {
    const auto function = is_backward ? rope->backward_rope : rope->forward_rope;
    check_rope(function(static_cast<rope_desc_t *>(desc.get()), &args, reader.stream()));
  }
};

const char *const kFields[] = {"q", "k", "v"};

// Makes new tensors for the given ones of q, k and v.
void rotate_to_new(const Reader &reader, const Descriptor &desc, Tensor *const (&inputs)[3], const Operands &operands,
                   rope_args_t *args, Value *stack) {
  rope_tensor_t *const views[] = {&args->q, &args->k, &args->v};
  rope_tensor_t *const output_views[] = {&args->q_out, &args->k_out, &args->v_out};
  Results results;
  for (int i = 0; i < 3; ++i) {
    if (inputs[i] == nullptr) {
      results.add_absent();
    } else {
      reader.read(views[i], kFields[i], inputs[i]);
      results.add(reader.make(*views[i], inputs[i], operands.cu_seqlens != nullptr, output_views[i]));
    }
  }
  operands.fill(reader, args);
  operands.run(desc, *args, reader);
  results.move_to(stack);
}

void rotate(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 14);
  const std::string_view key = arguments.text();
  Tensor *const inputs[] = {arguments.tensor(), arguments.optional_tensor(), arguments.optional_tensor()};
  const Operands operands(&arguments);

  const Reader reader("rotate", "q", inputs[0]);
  const Descriptor desc = find_descriptor("rotate", kRopePrefix, key, reader.device());
  rope_args_t args = ROPE_ARGS_INIT;
  rotate_to_new(reader, desc, inputs, operands, &args, stack);
}

// Rotates in place. step could do this, too, but its many absent arguments cost more than 1 us.
void rotate_(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 14);
  const std::string_view key = arguments.text();
  Tensor *const tensors[] = {arguments.tensor(), arguments.optional_tensor(), arguments.optional_tensor()};
  const Operands operands(&arguments);

  const Reader reader("rotate_", "q", tensors[0]);
  const Descriptor desc = find_descriptor("rotate_", kRopePrefix, key, reader.device());
  rope_args_t args = ROPE_ARGS_INIT;
  reader.read_written(&args.q, "q", tensors[0]);
  reader.read_written(&args.k, "k", tensors[1]);
  reader.read_written(&args.v, "v", tensors[2]);
  operands.fill(reader, &args);
  operands.run(desc, args, reader);
}

// A tensor of a group: its field, and its name in errors.
template <typename Group>
struct GroupField {
  rope_tensor_t Group::*view;
  const char *name;
  bool is_written = false;
};

// In the order of the schema.
constexpr GroupField<rope_norm_args_t> norm_fields[] = {{&rope_norm_args_t::q_weight, "q_weight"},
                                                        {&rope_norm_args_t::k_weight, "k_weight"},
                                                        {&rope_norm_args_t::q_bias, "q_bias"},
                                                        {&rope_norm_args_t::k_bias, "k_bias"}};
constexpr GroupField<rope_cache_args_t> cache_fields[] = {{&rope_cache_args_t::k_cache, "k_cache", true},
                                                          {&rope_cache_args_t::v_cache, "v_cache", true},
                                                          {&rope_cache_args_t::slots, "slots"},
                                                          {&rope_cache_args_t::page_table, "page_table"},
                                                          {&rope_cache_args_t::page_indptr, "page_indptr"},
                                                          {&rope_cache_args_t::sequence, "sequence"},
                                                          {&rope_cache_args_t::positions, "cache_positions"},
                                                          {&rope_cache_args_t::k_pass_cache, "k_pass_cache", true},
                                                          {&rope_cache_args_t::k_scales, "k_scales", true},
                                                          {&rope_cache_args_t::v_scales, "v_scales", true},
                                                          {&rope_cache_args_t::k_pass_scales, "k_pass_scales", true}};
constexpr GroupField<rope_quant_args_t> quant_fields[] = {{&rope_quant_args_t::q_scale, "q_scale"},
                                                          {&rope_quant_args_t::k_scale, "k_scale"},
                                                          {&rope_quant_args_t::v_scale, "v_scale"},
                                                          {&rope_quant_args_t::k_pass_scale, "k_pass_scale"},
                                                          {&rope_quant_args_t::q_scales_out, "q_scales_out", true},
                                                          {&rope_quant_args_t::k_scales_out, "k_scales_out", true},
                                                          {&rope_quant_args_t::v_scales_out, "v_scales_out", true},
                                                          {&rope_quant_args_t::amax_out, "amax_out", true}};
constexpr GroupField<rope_input_args_t> input_fields[] = {{&rope_input_args_t::q_pass, "q_pass"},
                                                          {&rope_input_args_t::k_pass, "k_pass"},
                                                          {&rope_input_args_t::q_row_factor, "q_row_factor"},
                                                          {&rope_input_args_t::k_row_factor, "k_row_factor"},
                                                          {&rope_input_args_t::v_row_factor, "v_row_factor"}};

constexpr GroupField<swiglu_quant_args_t> swiglu_quant_fields[] = {
    {&swiglu_quant_args_t::scale, "scale"},
    {&swiglu_quant_args_t::scales_out, "scales_out", true},
    {&swiglu_quant_args_t::amax_out, "amax_out", true}};

// The tensors of a group. They are taken with the arguments, and read once there is a Reader.
template <typename Group, size_t kCount>
class GroupTensors {
 public:
  GroupTensors(const GroupField<Group> (&fields)[kCount], Arguments *arguments) : fields_(fields) {
    for (Tensor *&x : tensors_) x = arguments->optional_tensor();
  }
  Tensor *operator[](size_t i) const { return tensors_[i]; }
  bool has_any() const {
    return std::any_of(tensors_, tensors_ + kCount, [](const Tensor *x) { return x != nullptr; });
  }
  void fill(const Reader &reader, Group *group) const {
    for (size_t i = 0; i < kCount; ++i) {
      const auto read = fields_[i].is_written ? &Reader::read_written : &Reader::read;
      (reader.*read)(&(group->*fields_[i].view), fields_[i].name, tensors_[i]);
    }
  }

 private:
  const GroupField<Group> (&fields_)[kCount];
  Tensor *tensors_[kCount];
};

// Fills the group of scales, and returns whether there is one.
template <typename Quant, size_t kCount>
bool fill_quant(const GroupTensors<Quant, kCount> &tensors, double scale_floor, int64_t flags, const Reader &reader,
                Quant *quant) {
  if ((flags & kScaleMultiplies) != 0) quant->flags |= ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  if ((flags & kPowerOfTwo) != 0) quant->flags |= ROPE_QUANT_FLAG_POWER_OF_TWO;
  quant->scale_floor = scale_floor;
  tensors.fill(reader, quant);
  return tensors.has_any() || scale_floor != 0 || quant->flags != 0;
}

void norm_rotate(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 17);
  const std::string_view key = arguments.text();
  Tensor *const inputs[] = {arguments.tensor(), arguments.optional_tensor(), arguments.optional_tensor()};
  const Operands operands(false, &arguments);
  const GroupTensors norm_tensors(norm_fields, &arguments);

  const Reader reader("norm_rotate", "q", inputs[0]);
  const Descriptor desc = find_descriptor("norm_rotate", kRopePrefix, key, reader.device());
  rope_args_t args = ROPE_ARGS_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  norm_tensors.fill(reader, &norm);
  args.norm = &norm;
  rotate_to_new(reader, desc, inputs, operands, &args, stack);
}

// Selects the columns of one weight in rows [num_runs, C]: [num_runs, D] or [num_runs, H, D].
rope_tensor_t columns_of(const rope_tensor_t &rows, int64_t first, const rope_tensor_t &weight) {
  rope_tensor_t part = rows;
  const int64_t size = rows.dtype == ROPE_DTYPE_F64 ? 8 : 4;
  part.data = static_cast<char *>(rows.data) + first * size;
  part.ndim = static_cast<uint16_t>(1 + weight.ndim);
  int64_t stride = 1;
  for (int i = weight.ndim - 1; i >= 0; --i) {
    part.shape[1 + i] = weight.shape[i];
    part.stride[1 + i] = stride;
    stride *= weight.shape[i];
  }
  return part;
}

int64_t count_elements(const rope_tensor_t &x) {
  int64_t count = 1;
  for (int i = 0; i < x.ndim; ++i) count *= x.shape[i];
  return count;
}

void norm_rotate_backward(Value *stack, uint64_t num_arguments, uint64_t) {
  constexpr const char *kFunction = "norm_rotate_backward";
  constexpr int kNumWeights = 4;
  Arguments arguments(stack, num_arguments, 22);
  const std::string_view key = arguments.text();
  Tensor *gradients[3], *weights[kNumWeights], *inputs[3];
  for (Tensor *&x : gradients) x = arguments.optional_tensor();
  const Operands operands(true, &arguments);
  for (Tensor *&x : weights) x = arguments.optional_tensor();
  for (Tensor *&x : inputs) x = arguments.optional_tensor();
  const int64_t wanted = arguments.integer();  // one bit for each of the weights
  const int64_t num_runs = arguments.integer();

  int first = 0;
  while (first < 3 && gradients[first] == nullptr) ++first;
  if (first == 3) fail("%s: q, k and v are absent: one of them must be given", kFunction);
  if (wanted < 0 || wanted >= 1 << kNumWeights) fail("%s: wanted has unknown bits", kFunction);
  const Reader reader(kFunction, kFields[first], gradients[first]);
  const Descriptor desc = find_descriptor(kFunction, kRopePrefix, key, reader.device());
  rope_args_t args = ROPE_ARGS_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  args.norm = &norm;
  rope_tensor_t *const views[] = {&args.q, &args.k, &args.v};
  rope_tensor_t *const output_views[] = {&args.q_out, &args.k_out, &args.v_out};
  rope_tensor_t *const input_views[] = {&norm.q_in, &norm.k_in, &norm.v_in};
  static const char *const kept_fields[] = {"q_in", "k_in", "v_in"};
  Results results;
  for (int i = 0; i < 3; ++i) {
    if (gradients[i] == nullptr) {
      results.add_absent();
      continue;
    }
    reader.read(views[i], kFields[i], gradients[i]);
    reader.read(input_views[i], kept_fields[i], inputs[i]);
    const bool is_like_input = inputs[i] != nullptr;  // the shape that forward gives its results
    results.add(reader.make(is_like_input ? *input_views[i] : *views[i], is_like_input ? inputs[i] : gradients[i],
                            operands.cu_seqlens != nullptr, output_views[i]));
  }

  rope_tensor_t *const row_views[] = {&norm.grad_q_weight, &norm.grad_k_weight, &norm.grad_q_bias, &norm.grad_k_bias};
  rope_tensor_t weight_views[kNumWeights] = {};
  int64_t num_columns = 0;
  for (int i = 0; i < kNumWeights; ++i) {
    reader.read(&weight_views[i], norm_fields[i].name, weights[i]);
    if ((wanted >> i & 1) == 0) continue;
    if (weights[i] == nullptr)
      fail("%s: wanted has the gradient of %s, which is absent", kFunction, norm_fields[i].name);
    if (weight_views[i].ndim >= kMaxAxes) fail("%s: %s: it has too many axes", kFunction, norm_fields[i].name);
    num_columns += count_elements(weight_views[i]);
  }
  norm.q_weight = weight_views[0];
  norm.k_weight = weight_views[1];
  if (wanted == 0) {
    results.add_absent();
  } else {
    rope_tensor_t rows;
    const rope_dtype_t dtype = views[first]->dtype == ROPE_DTYPE_F64 ? ROPE_DTYPE_F64 : ROPE_DTYPE_F32;
    results.add(reader.make_zeros(dtype, num_runs, num_columns, &rows));
    int64_t column = 0;
    for (int i = 0; i < kNumWeights; ++i) {
      if ((wanted >> i & 1) == 0) continue;
      *row_views[i] = columns_of(rows, column, weight_views[i]);
      column += count_elements(weight_views[i]);
    }
  }
  operands.fill(reader, &args);
  operands.run(desc, args, reader);
  results.move_to(stack);
}

void step(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, kMaxArguments);
  const std::string_view key = arguments.text();
  Tensor *inputs[3], *outputs[3];
  for (Tensor *&x : inputs) x = arguments.optional_tensor();
  for (Tensor *&x : outputs) x = arguments.optional_tensor();
  const Operands operands(&arguments);
  Tensor *const fault = arguments.optional_tensor();
  const GroupTensors norm_tensors(norm_fields, &arguments);
  const GroupTensors cache_tensors(cache_fields, &arguments);
  const GroupTensors quant_tensors(quant_fields, &arguments);
  const double scale_floor = arguments.number();
  const GroupTensors input_tensors(input_fields, &arguments);

  static const char *const output_fields[] = {"q_out", "k_out", "v_out"};
  int first = 0;
  while (first < 3 && inputs[first] == nullptr && outputs[first] == nullptr) ++first;
  if (first == 3) fail("step: q, k and v are absent: one of them must be given");
  const Reader reader("step", kFields[first], inputs[first] != nullptr ? inputs[first] : outputs[first]);
  const Descriptor desc = find_descriptor("step", kRopePrefix, key, reader.device());
  rope_args_t args = ROPE_ARGS_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;

  rope_tensor_t *const views[] = {&args.q, &args.k, &args.v};
  rope_tensor_t *const output_views[] = {&args.q_out, &args.k_out, &args.v_out};
  for (size_t i = 0; i < 3; ++i) {
    const bool is_cached = i > 0 && cache_tensors[i - 1] != nullptr;
    if (inputs[i] == nullptr) {  // in place
      reader.read_written(views[i], output_fields[i], outputs[i]);
      if (is_cached) *output_views[i] = *views[i];
    } else if (outputs[i] != nullptr) {
      reader.read(views[i], kFields[i], inputs[i]);
      reader.read_written(output_views[i], output_fields[i], outputs[i]);
    } else if (is_cached) {
      reader.read(views[i], kFields[i], inputs[i]);
    } else {
      fail("step: %s is absent: it is required without a cache", output_fields[i]);
    }
  }
  operands.fill(reader, &args);
  reader.read_written(&args.fault, "fault", fault);

  const int64_t flags = operands.flags;
  if (norm_tensors.has_any() || (flags & kHasNorm) != 0) {  // the flag alone means a norm without weights
    norm_tensors.fill(reader, &norm);
    args.norm = &norm;
  }
  if (cache_tensors.has_any()) {
    cache_tensors.fill(reader, &cache);
    if ((flags & kSkipSlot0) != 0) cache.flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
    args.cache = &cache;
  }
  if (fill_quant(quant_tensors, scale_floor, flags, reader, &quant)) args.quant = &quant;
  if (input_tensors.has_any()) {
    input_tensors.fill(reader, &input);
    args.input = &input;
  }
  operands.run(desc, args, reader);
}

// ---- SwiGLU ----

// The common part of SwiGLU's operators.
struct Gating {
  Tensor *gate, *up, *row_scale = nullptr, *num_rows = nullptr, *gate_bias = nullptr, *up_bias = nullptr,
                     *expert_rows = nullptr, *expert_offsets = nullptr, *row_index = nullptr;
  int64_t flags = 0;
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;

  explicit Gating(Arguments *arguments) : gate(arguments->tensor()), up(arguments->tensor()) {}

  void take_operands(Arguments *arguments) {
    row_scale = arguments->optional_tensor();
    num_rows = arguments->optional_tensor();
    gate_bias = arguments->optional_tensor();
    up_bias = arguments->optional_tensor();
    expert_rows = arguments->optional_tensor();
    expert_offsets = arguments->optional_tensor();
    row_index = arguments->optional_tensor();
    flags = arguments->integer();
  }

  void run(const Descriptor &desc, decltype(&::swiglu_forward) function, const Reader &reader) const {
    check_rope(function(static_cast<swiglu_desc_t *>(desc.get()), &args, reader.stream()));
  }

  bool has_rows_left_out() const {
    return num_rows != nullptr || expert_rows != nullptr || expert_offsets != nullptr || row_index != nullptr;
  }

  void fill(const Reader &reader) {
    if (flags < 0 || flags > UINT32_MAX) fail("%s: flags has unknown bits", reader.function());
    args.flags = static_cast<uint32_t>(flags);
    reader.read(&args.gate, "gate", gate);
    reader.read(&args.up, "up", up);
    reader.read(&args.row_scale, "row_scale", row_scale);
    reader.read(&args.num_rows, "num_rows", num_rows);
    const struct {
      rope_tensor_t *view;
      const char *name;
      Tensor *tensor;
    } further[] = {{&input.gate_bias, "gate_bias", gate_bias},
                   {&input.up_bias, "up_bias", up_bias},
                   {&input.expert_rows, "expert_rows", expert_rows},
                   {&input.expert_offsets, "expert_offsets", expert_offsets},
                   {&input.row_index, "row_index", row_index}};
    for (const auto &each : further) {
      reader.read(each.view, each.name, each.tensor);
      if (each.tensor != nullptr) args.input = &input;
    }
  }
};

void swiglu(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 11);
  const std::string_view key = arguments.text();
  Gating gating(&arguments);
  gating.take_operands(&arguments);
  const Reader reader("swiglu", "gate", gating.gate);
  const Descriptor desc = find_descriptor("swiglu", kSwigluPrefix, key, reader.device());
  gating.fill(reader);
  Results results;
  results.add(reader.make(gating.args.gate, gating.gate, gating.has_rows_left_out(), &gating.args.out));
  gating.run(desc, rope->forward_swiglu, reader);
  results.move_to(stack);
}

void swiglu_out(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 17);
  const std::string_view key = arguments.text();
  Gating gating(&arguments);
  Tensor *const out = arguments.tensor();
  gating.take_operands(&arguments);
  const GroupTensors quant_tensors(swiglu_quant_fields, &arguments);
  const double scale_floor = arguments.number();
  const int64_t scale_layout = arguments.integer();
  const Reader reader("swiglu_out", "gate", gating.gate);
  const Descriptor desc = find_descriptor("swiglu_out", kSwigluPrefix, key, reader.device());
  const int64_t quant_flags = gating.flags & (kScaleMultiplies | kPowerOfTwo);
  gating.flags -= quant_flags;
  gating.fill(reader);
  reader.read_written(&gating.args.out, "out", out);
  int32_t dtype = 0;
  CALL_TORCH(aoti_torch_get_dtype, out, &dtype);
  if (dtype == torch.aoti_torch_dtype_uint8()) gating.args.out.dtype = ROPE_DTYPE_F4_E2M1X2;  // graphs use uint8
  if (scale_layout != static_cast<int32_t>(scale_layout)) fail("swiglu_out: scale_layout is out of range");
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  quant.scale_layout = static_cast<int32_t>(scale_layout);
  if (fill_quant(quant_tensors, scale_floor, quant_flags, reader, &quant) || scale_layout != 0) {
    gating.args.quant = &quant;
  }
  gating.run(desc, rope->forward_swiglu, reader);
}

void swiglu_backward(Value *stack, uint64_t num_arguments, uint64_t) {
  Arguments arguments(stack, num_arguments, 13);
  const std::string_view key = arguments.text();
  Tensor *const grad_out = arguments.tensor();
  Gating gating(&arguments);
  const int64_t wanted = arguments.integer();  // one bit for each of gate, up and row_scale
  gating.take_operands(&arguments);
  const Reader reader("swiglu_backward", "grad_out", grad_out);
  const Descriptor desc = find_descriptor("swiglu_backward", kSwigluPrefix, key, reader.device());
  gating.fill(reader);
  swiglu_args_t &args = gating.args;
  reader.read(&args.grad_out, "grad_out", grad_out);
  Tensor *const inputs[] = {gating.gate, gating.up, gating.row_scale};
  rope_tensor_t of_row_scale = args.row_scale;
  if (gating.row_index != nullptr) {  // each row has a gradient
    of_row_scale.shape[0] = args.gate.shape[0];
    of_row_scale.stride[0] = 1;
  }
  const rope_tensor_t *const views[] = {&args.gate, &args.up, &of_row_scale};
  rope_tensor_t *const gradients[] = {&args.grad_gate, &args.grad_up, &args.grad_row_scale};
  Results results;
  for (int i = 0; i < 3; ++i) {
    if ((wanted >> i & 1) == 0) {
      results.add_absent();
    } else if (inputs[i] == nullptr) {
      fail("swiglu_backward: wanted has the gradient of row_scale, which is absent");
    } else {
      results.add(reader.make(*views[i], inputs[i], gating.has_rows_left_out(), gradients[i]));
    }
  }
  gating.run(desc, rope->backward_swiglu, reader);
  results.move_to(stack);
}

struct {
  const char *name;
  Kernel *kernel;
} const kernels[] = {{"rotate", rotate},
                     {"rotate_", rotate_},
                     {"norm_rotate", norm_rotate},
                     {"norm_rotate_backward", norm_rotate_backward},
                     {"step", step},
                     {"swiglu", swiglu},
                     {"swiglu_out", swiglu_out},
                     {"swiglu_backward", swiglu_backward}};

char load_failure[256];

[[gnu::format(printf, 1, 2)]] const char *cannot_load(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(load_failure, sizeof load_failure, format, values);
  va_end(values);
  return load_failure;
}

// Registers the kernels for one kind of device. Returns NULL, or torch's reason for refusing; then none is registered.
const char *register_kernels(const char *dispatch_key, Library **library) {
  if (torch.aoti_torch_library_init_impl("librope", dispatch_key, "librope_torch.so", 0, library) != 0) {
    return "torch refuses kernels for the library librope";
  }
  for (const auto &each : kernels) {
    if (torch.torch_library_impl(*library, each.name, each.kernel, kTorch_2_10) != 0) {
      torch.aoti_torch_delete_library_object(*library);
      return "torch refuses a kernel of librope";
    }
  }
  return nullptr;
}

}  // namespace

// Registers the kernels with the torch that is loaded. The schemas must be defined. It must be called once in a
// process. The functions are read at each call and must live as long as the process. version: the ROPE_VERSION of the
// calling package. Returns NULL, or the reason why nothing was registered.
extern "C" __attribute__((visibility("default"))) const char *rope_torch_load(const RopeFunctions *functions,
                                                                              int32_t version) {
  if (version != ROPE_VERSION) {
    return cannot_load("it is of librope %d.%d.%d, this package of %d.%d.%d", ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR,
                       ROPE_VERSION_PATCH, version / 10000, version / 100 % 100, version % 100);
  }
  void *const libtorch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (libtorch == nullptr) return "libtorch_cpu.so is not loaded";
#define FIND(name, parameters) \
  if (!find(libtorch, #name, &torch.name)) return cannot_load("this torch has no %s", #name);
  FOR_TORCH_FUNCTIONS(FIND)
#undef FIND
  find(libtorch, "torch_delete_stable_ivalue", &torch.torch_delete_stable_ivalue);
  find(libtorch, "torch_exception_get_what_without_backtrace", &torch.torch_exception_get_what_without_backtrace);
  find(libtorch, "aoti_torch_dtype_float8_e8m0fnu", &torch.aoti_torch_dtype_float8_e8m0fnu);
  find(libtorch, "aoti_torch_dtype_float4_e2m1fn_x2", &torch.aoti_torch_dtype_float4_e2m1fn_x2);
  rope = functions;

  torch_cpu = torch.aoti_torch_device_type_cpu();
  torch_cuda = torch.aoti_torch_device_type_cuda();
  const int32_t e8m0 = torch.aoti_torch_dtype_float8_e8m0fnu != nullptr
                           ? torch.aoti_torch_dtype_float8_e8m0fnu()
                           : 44;  // c10::ScalarType::Float8_e8m0fnu of torch 2.10 and 2.11
  const int32_t e2m1x2 = torch.aoti_torch_dtype_float4_e2m1fn_x2 != nullptr ? torch.aoti_torch_dtype_float4_e2m1fn_x2()
                                                                            : 45;  // Float4_e2m1fn_x2
  const struct {
    int32_t number;
    rope_dtype_t dtype;
  } dtypes[] = {{torch.aoti_torch_dtype_float32(), ROPE_DTYPE_F32},
                {torch.aoti_torch_dtype_float16(), ROPE_DTYPE_F16},
                {torch.aoti_torch_dtype_bfloat16(), ROPE_DTYPE_BF16},
                {torch.aoti_torch_dtype_float64(), ROPE_DTYPE_F64},
                {torch.aoti_torch_dtype_int32(), ROPE_DTYPE_I32},
                {torch.aoti_torch_dtype_int64(), ROPE_DTYPE_I64},
                {torch.aoti_torch_dtype_float8_e4m3fn(), ROPE_DTYPE_F8_E4M3},
                {torch.aoti_torch_dtype_float8_e5m2(), ROPE_DTYPE_F8_E5M2},
                {e8m0, ROPE_DTYPE_F8_E8M0},
                {e2m1x2, ROPE_DTYPE_F4_E2M1X2},
                {torch.aoti_torch_dtype_uint8(), ROPE_DTYPE_F8_E8M0}};  // graphs have E8M0 as uint8
  for (const auto &each : dtypes) {
    if (each.number >= 0 && each.number < kMaxDtypes) rope_dtypes[each.number] = each.dtype;
  }
  Library *cpu = nullptr, *cuda = nullptr;  // never freed: this would remove the kernels
  const char *failure = register_kernels("CPU", &cpu);
  if (failure != nullptr) return failure;
  failure = register_kernels("CUDA", &cuda);
  if (failure != nullptr) torch.aoti_torch_delete_library_object(cpu);
  return failure;
}
