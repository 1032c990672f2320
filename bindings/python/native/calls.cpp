// SPDX-License-Identifier: Apache-2.0
// calls.cpp - calls of descriptors with tensors of torch and arrays of NumPy, as builtins of Python
//
// The builtins do the work of librope/_rope.py and librope/_swiglu.py without ctypes, in a fraction of the time, for
// calls that need no check. For any other call, and for one that the library refuses, they write nothing and return
// NotImplemented: those modules then repeat the call, and raise the error.
//
// This file includes nothing of Python or torch. It declares the part of Python's stable ABI that it uses, and finds it
// in the interpreter that loads it. torch gives its tensors through DLPack's exchange API. One file therefore serves
// every Python and torch.
#include <rope/rope.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

// ---- What is used of other libraries ----

// The stable ABI of CPython 3.9.
extern "C" {
struct PyObject;
struct PyThreadState;
using PyCFunctionFast = PyObject *(PyObject *self, PyObject *const *arguments, ptrdiff_t count);
struct PyMethodDef {
  const char *name;
  PyCFunctionFast *function;
  int flags;
  const char *doc;
};
extern PyObject _Py_NotImplementedStruct, _Py_NoneStruct, _Py_FalseStruct, _Py_TrueStruct, PyTuple_Type, PyList_Type,
    PyLong_Type, *PyExc_Exception;
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
int PyObject_IsTrue(PyObject *);
PyObject *PyObject_CallObject(PyObject *, PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *PyTuple_New(ptrdiff_t);
PyObject *PyTuple_GetItem(PyObject *, ptrdiff_t);
int PyTuple_SetItem(PyObject *, ptrdiff_t, PyObject *);
ptrdiff_t PySequence_Size(PyObject *);
PyObject *PySequence_GetItem(PyObject *, ptrdiff_t);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
double PyFloat_AsDouble(PyObject *);
long PyLong_AsLong(PyObject *);
long long PyLong_AsLongLong(PyObject *);
void *PyLong_AsVoidPtr(PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *);
PyObject *PyErr_Occurred();
int PyErr_ExceptionMatches(PyObject *);
void PyErr_Clear();
PyThreadState *PyEval_SaveThread();
void PyEval_RestoreThread(PyThreadState *);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *self, PyObject *module);
}

namespace {

constexpr int kMethFastCall = 0x0080;  // METH_FASTCALL
PyObject *const kNone = &_Py_NoneStruct, *const kFalse = &_Py_FalseStruct;

// DLPack 1.2 and later, dlpack.h.
enum DlDevice : int32_t {
  kDlCpu = 1,
  kDlCuda = 2
};
enum DlType : uint8_t {
  kDlInt = 0,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlFloat8E4m3fn = 10,
  kDlFloat8E5m2 = 12,
  kDlFloat8E8m0fnu = 14,
  kDlFloat4E2m1fn = 17
};
struct DlTensor {
  void *data;
  int32_t device, device_index;
  int32_t ndim;
  uint8_t type, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DlExchangeApi {
  uint32_t major, minor;
  DlExchangeApi *previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*read)(PyObject *, DlTensor *);
  int (*current_stream)(int32_t device, int32_t index, void **stream);
};

// NumPy's PyArrayInterface, behind __array_struct__.
struct ArrayInterface {
  int two, ndim;
  char kind;
  int itemsize, flags;
  const intptr_t *shape, *strides;
  void *data;
};
constexpr int kNativeOrder = 0x200, kWriteable = 0x400;

// librope's functions, as librope/_calls.py passes them.
struct RopeFunctions {
  decltype(&rope_forward) forward_rope;
  decltype(&rope_backward) backward_rope;
  decltype(&swiglu_forward) forward_swiglu;
  decltype(&swiglu_backward) backward_swiglu;
};
const RopeFunctions *rope;

// ---- Objects of Python ----

// Owns a reference, or none.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject *object) : object_(object) {}
  Ref(const Ref &) = delete;
  Ref &operator=(const Ref &) = delete;
  ~Ref() { reset(nullptr); }

  void reset(PyObject *object) {
    if (object_ != nullptr) Py_DecRef(object_);
    object_ = object;
  }
  PyObject *get() const { return object_; }
  PyObject *release() {
    PyObject *const object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject *object_ = nullptr;
};

PyObject *new_reference(PyObject *object) {
  Py_IncRef(object);
  return object;
}

bool is_exactly(PyObject *x, const PyObject *type) {
  return Ref(PyObject_Type(x)).get() == type;
}

// Takes the result of a call. A result without an object, which is an error, counts as true.
bool is_true(const Ref &x) {
  return !x || PyObject_IsTrue(x.get()) != 0;
}

// Clears an error, unless it is not derived from Exception.
bool is_interrupted() {
  if (PyErr_Occurred() == nullptr) return false;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return true;
  PyErr_Clear();
  return false;
}

// The result of a builtin for a call that it does not make.
PyObject *leave() {
  return is_interrupted() ? nullptr : new_reference(&_Py_NotImplementedStruct);
}

struct {
  PyObject *array_struct, *config, *current_level, *handle_on, *handles, *head_dim, *is_neg, *pointer, *requires_grad;
} names;

// ---- Tensors ----

struct Device {
  rope_device_t kind;
  int32_t index;
};

// A framework with arrays that the builtins read. Its objects are never freed.
struct Framework {
  bool (*read)(PyObject *x, bool is_written, rope_tensor_t *view, Device *device);
  bool (*is_plain)(PyObject *x);  // whether a tensor of the caller is all that `read` sees of it
  bool (*is_transformed)();       // whether tensors may differ from what they show, or calls may do more than they show
  PyObject *types[2];             // exactly these types, no subclasses
  PyObject *empty_like, *zeros_like;  // called with a tensor
  PyObject *widened;                  // called with a tensor, a number of channels, and whether they are zeroed
  PyObject *wrote;                    // called with a tuple of tensors; NULL if the framework needs no notice
};
Framework torch, numpy;

struct {
  const DlExchangeApi *api;
  PyObject *forward_ad;  // the module
  PyObject *is_grad_enabled;
  PyObject *questions;  // a tuple of functions: nothing is transformed if all of them return false
} torch_state;

constexpr int kMaxAxes = 4;

// Strides are counted in `unit`s, of one element or of its bytes. Returns false if librope has no such tensors.
template <typename Integer>
bool fill(rope_tensor_t *view, void *data, rope_dtype_t dtype, int ndim, const Integer *shape, const Integer *strides,
          int unit) {
  if (dtype == 0 || ndim < 1 || ndim > kMaxAxes || strides == nullptr) return false;
  view->data = data;
  view->dtype = dtype;
  view->ndim = static_cast<uint16_t>(ndim);
  view->flags = ROPE_TENSOR_STRIDED;
  for (int i = 0; i < ndim; ++i) {
    if (strides[i] % unit != 0) return false;
    view->shape[i] = shape[i];
    view->stride[i] = strides[i] / unit;
  }
  return true;
}

rope_dtype_t dtype_of(const DlTensor &x) {
  if (x.type == kDlFloat4E2m1fn && x.bits == 4 && x.lanes == 2) return ROPE_DTYPE_F4_E2M1X2;
  if (x.lanes != 1) return 0;
  switch (x.type << 8 | x.bits) {
    case kDlFloat << 8 | 32:
      return ROPE_DTYPE_F32;
    case kDlFloat << 8 | 16:
      return ROPE_DTYPE_F16;
    case kDlFloat << 8 | 64:
      return ROPE_DTYPE_F64;
    case kDlBfloat << 8 | 16:
      return ROPE_DTYPE_BF16;
    case kDlInt << 8 | 32:
      return ROPE_DTYPE_I32;
    case kDlInt << 8 | 64:
      return ROPE_DTYPE_I64;
    case kDlFloat8E4m3fn << 8 | 8:
      return ROPE_DTYPE_F8_E4M3;
    case kDlFloat8E5m2 << 8 | 8:
      return ROPE_DTYPE_F8_E5M2;
    case kDlFloat8E8m0fnu << 8 | 8:
      return ROPE_DTYPE_F8_E8M0;
    default:
      return 0;
  }
}

bool read_torch(PyObject *x, bool, rope_tensor_t *view, Device *device) {
  DlTensor tensor;
  if (torch_state.api->read(x, &tensor) != 0) return false;
  if (tensor.device != kDlCpu && tensor.device != kDlCuda) return false;
  *device = tensor.device == kDlCuda ? Device{ROPE_DEVICE_CUDA, tensor.device_index} : Device{ROPE_DEVICE_CPU, 0};
  void *const data = static_cast<char *>(tensor.data) + tensor.byte_offset;
  return fill(view, data, dtype_of(tensor), tensor.ndim, tensor.shape, tensor.strides, 1);
}

bool is_plain_torch(PyObject *x) {
  const Ref requires_grad(PyObject_GetAttr(x, names.requires_grad));
  if (!requires_grad) return false;
  if (is_true(requires_grad) && is_true(Ref(PyObject_CallObject(torch_state.is_grad_enabled, nullptr)))) return false;
  return !is_true(Ref(PyObject_CallMethodObjArgs(x, names.is_neg, nullptr)));
}

// Several types of ml_dtypes look alike here. Calls with them go through ctypes, which reads their names.
rope_dtype_t dtype_of(const ArrayInterface &x) {
  if ((x.flags & kNativeOrder) == 0) return 0;
  if (x.kind == 'f') {
    return x.itemsize == 4 ? ROPE_DTYPE_F32 : x.itemsize == 2 ? ROPE_DTYPE_F16 : x.itemsize == 8 ? ROPE_DTYPE_F64 : 0;
  }
  return x.kind != 'i' ? 0 : x.itemsize == 4 ? ROPE_DTYPE_I32 : x.itemsize == 8 ? ROPE_DTYPE_I64 : 0;
}

bool read_numpy(PyObject *x, bool is_written, rope_tensor_t *view, Device *device) {
  const Ref capsule(PyObject_GetAttr(x, names.array_struct));
  if (!capsule) return false;
  const auto *array = static_cast<const ArrayInterface *>(PyCapsule_GetPointer(capsule.get(), nullptr));
  if (array == nullptr || (is_written && (array->flags & kWriteable) == 0)) return false;
  *device = {ROPE_DEVICE_CPU, 0};
  return fill(view, array->data, dtype_of(*array), array->ndim, array->shape, array->strides, array->itemsize);
}

bool is_plain_numpy(PyObject *) {
  return true;
}
bool is_numpy_transformed() {
  return false;
}

const Framework *framework_of(PyObject *x) {
  const Ref type(PyObject_Type(x));
  for (const Framework *framework : {&torch, &numpy}) {
    if (type.get() == framework->types[0] || type.get() == framework->types[1]) return framework;
  }
  return nullptr;
}

bool is_torch_transformed() {
  const Ref level(PyObject_GetAttr(torch_state.forward_ad, names.current_level));
  if (!level || PyLong_AsLong(level.get()) >= 0) return true;
  for (ptrdiff_t i = 0, count = PySequence_Size(torch_state.questions); i < count; ++i) {
    if (is_true(Ref(PyObject_CallObject(PyTuple_GetItem(torch_state.questions, i), nullptr)))) return true;
  }
  return false;
}

// ---- Calls ----

constexpr int kMaxWritten = 14;  // three outputs, fault, six of a cache, four of a quant
constexpr int kMaxResults = 3;
constexpr int kMaxOrdinals = 16;
PyObject *device_keys[1 + kMaxOrdinals];  // keys of a descriptor's handles: the CPU's, then CUDA's

// One call. Each function returns whether a builtin can still make the call.
class Call {
 public:
  explicit Call(PyObject *desc) : desc_(desc) {}

  // None leaves an absent view.
  bool read(PyObject *x, rope_tensor_t *view) { return x == kNone || read_given(x, false, view); }
  bool read_written(PyObject *x, rope_tensor_t *view) { return x == kNone || read_given(x, true, view); }

  // output: None makes a new one, with the descriptor's head_dim if `like` has a pass. It becomes the call's next
  // result.
  bool read_output(PyObject *output, PyObject *like, bool is_zeroed, rope_tensor_t *view, bool has_pass = false) {
    if (output != kNone) {
      add_result(output);
      return read_given(output, true, view);
    }
    PyObject *const made = has_pass ? make_widened(like, is_zeroed) : make_like(like, is_zeroed);
    results_[num_results_].reset(made);
    Device device = {};
    return made != nullptr && framework_->read(made, true, view, &device) && ++num_results_ != 0;
  }
  void add_result(PyObject *x) { results_[num_results_++].reset(new_reference(x)); }

  // Calls the library and returns the results. Results behind the first, or all if is_tuple is true, form a tuple.
  template <typename Desc, typename Args>
  PyObject *run(rope_status_t (*function)(const Desc *, const Args *, rope_stream_t), const Args &args, bool is_tuple) {
    if (framework_ == nullptr) return leave();
    const Ref handle = find_handle();
    if (!handle) return leave();
    const Ref pointer(PyObject_GetAttr(handle.get(), names.pointer));
    const auto *desc = pointer ? static_cast<const Desc *>(PyLong_AsVoidPtr(pointer.get())) : nullptr;
    if (desc == nullptr) return leave();
    void *stream = nullptr;
    if (device_.kind == ROPE_DEVICE_CUDA && torch_state.api->current_stream(kDlCuda, device_.index, &stream) != 0) {
      return leave();
    }
    PyThreadState *const state = PyEval_SaveThread();
    const rope_status_t status = function(desc, &args, static_cast<rope_stream_t>(stream));
    PyEval_RestoreThread(state);
    if (status != ROPE_STATUS_SUCCESS) return leave();
    if (!tell_written()) return nullptr;
    if (!is_tuple && num_results_ == 1) return results_[0].release();
    Ref results(PyTuple_New(num_results_));
    if (!results) return nullptr;
    for (int i = 0; i < num_results_; ++i) PyTuple_SetItem(results.get(), i, results_[i].release());
    return results.release();
  }

 private:
  bool read_given(PyObject *x, bool is_written, rope_tensor_t *view) {
    const Framework *const framework = framework_of(x);
    if (framework == nullptr) return false;
    Device device;
    if (!framework->read(x, is_written, view, &device) || !framework->is_plain(x)) return false;
    if (framework_ == nullptr) {
      if (framework->is_transformed()) return false;
      framework_ = framework;
      device_ = device;
    }
    if (framework != framework_ || device.kind != device_.kind || device.index != device_.index) return false;
    if (!is_written) return true;
    if (num_written_ == kMaxWritten) return false;
    written_[num_written_++] = x;
    return true;
  }

  PyObject *make_like(PyObject *like, bool is_zeroed) const {
    return PyObject_CallFunctionObjArgs(is_zeroed ? framework_->zeros_like : framework_->empty_like, like, nullptr);
  }
  PyObject *make_widened(PyObject *like, bool is_zeroed) const {
    const Ref config(PyObject_GetAttr(desc_, names.config));
    const Ref head_dim(config ? PyObject_GetAttr(config.get(), names.head_dim) : nullptr);
    PyObject *const zeroed = is_zeroed ? &_Py_TrueStruct : kFalse;
    return head_dim ? PyObject_CallFunctionObjArgs(framework_->widened, like, head_dim.get(), zeroed, nullptr)
                    : nullptr;
  }

  // The descriptor's handle for the device. It lives until the call returns, even if another thread closes the
  // descriptor.
  Ref find_handle() const {
    if (device_.kind == ROPE_DEVICE_CUDA && (device_.index < 0 || device_.index >= kMaxOrdinals)) return Ref();
    PyObject *const key = device_keys[device_.kind == ROPE_DEVICE_CUDA ? 1 + device_.index : 0];
    const Ref handles(PyObject_GetAttr(desc_, names.handles));
    if (!handles || handles.get() == kNone) return Ref();
    PyObject *const handle = PyDict_GetItemWithError(handles.get(), key);
    if (handle != nullptr) return Ref(new_reference(handle));
    if (PyErr_Occurred() != nullptr) return Ref();
    return Ref(PyObject_CallMethodObjArgs(desc_, names.handle_on, key, nullptr));
  }

  // Tells the framework which tensors were written, one by one if a tensor has no version (an inference tensor of
  // torch). Returns false on an interrupt.
  bool tell_written() const {
    if (framework_->wrote == nullptr || num_written_ == 0 || tell_written(0, num_written_)) return true;
    for (int i = 0; i < num_written_; ++i) {
      if (is_interrupted()) return false;
      tell_written(i, i + 1);
    }
    return !is_interrupted();
  }
  bool tell_written(int begin, int end) const {
    const Ref tensors(PyTuple_New(end - begin));
    if (!tensors) return false;
    for (int i = begin; i < end; ++i) PyTuple_SetItem(tensors.get(), i - begin, new_reference(written_[i]));
    return static_cast<bool>(Ref(PyObject_CallFunctionObjArgs(framework_->wrote, tensors.get(), nullptr)));
  }

  PyObject *const desc_;
  const Framework *framework_ = nullptr;  // of all tensors of the call
  Device device_ = {};                    // of all tensors of the call
  int num_written_ = 0, num_results_ = 0;
  PyObject *written_[kMaxWritten];
  Ref results_[kMaxResults];
};

// ---- RoPE ----

// librope's classes of groups and enumerators.
struct {
  PyObject *norm, *cache, *quant, *input, *swiglu_quant, *table_rows;
  PyObject *strided;  // the enumerator of a ScaleLayout
} types;

// For an object that is no integer, or a bool, ctypes raises the right error.
bool read_integer(PyObject *x, int64_t *number) {
  if (!is_exactly(x, &PyLong_Type) && !is_exactly(x, types.table_rows)) return false;
  *number = PyLong_AsLongLong(x);
  return *number != -1 || PyErr_Occurred() == nullptr;
}

// A group has a class of its own. Its objects may have been made in other ways than by its constructor.
bool is_group(PyObject *group, const PyObject *type, ptrdiff_t size) {
  return is_exactly(group, type) && PySequence_Size(group) == size;
}

// Reads the first fields of a group: tensors that the call reads.
bool read_fields(PyObject *group, std::initializer_list<rope_tensor_t *> views, Call *call) {
  ptrdiff_t i = 0;
  for (rope_tensor_t *view : views) {
    if (!call->read(PyTuple_GetItem(group, i++), view)) return false;
  }
  return true;
}

bool read_norm(PyObject *group, Call *call, rope_norm_args_t *norm) {
  return is_group(group, types.norm, 4) &&
         read_fields(group, {&norm->q_weight, &norm->k_weight, &norm->q_bias, &norm->k_bias}, call);
}

enum InputField : ptrdiff_t {
  kQPass,
  kKPass,
  kNumInputFields = 5
};

bool read_input(PyObject *group, Call *call, rope_input_args_t *input) {
  return read_fields(
      group, {&input->q_pass, &input->k_pass, &input->q_row_factor, &input->k_row_factor, &input->v_row_factor}, call);
}

enum QuantField : ptrdiff_t {
  kQScalesOut = 4,  // after the scales that are read
  kKScalesOut,
  kVScalesOut,
  kAmaxOut,
  kScaleFloor,
  kNumQuantFields = kScaleFloor + 3
};

// Reads the numbers of a group of scales: its floor, then two flags.
template <typename Quant>
bool read_quant_numbers(PyObject *group, ptrdiff_t floor, Quant *quant) {
  const int multiplies = PyObject_IsTrue(PyTuple_GetItem(group, floor + 1));
  const int is_power = PyObject_IsTrue(PyTuple_GetItem(group, floor + 2));
  if (multiplies > 0) quant->flags |= ROPE_QUANT_FLAG_SCALE_MULTIPLIES;
  if (is_power > 0) quant->flags |= ROPE_QUANT_FLAG_POWER_OF_TWO;
  quant->scale_floor = PyFloat_AsDouble(PyTuple_GetItem(group, floor));
  return multiplies >= 0 && is_power >= 0 && PyErr_Occurred() == nullptr;
}

bool read_quant(PyObject *group, Call *call, rope_quant_args_t *quant) {
  if (!is_group(group, types.quant, kNumQuantFields)) return false;
  const auto field = [group](QuantField i) { return PyTuple_GetItem(group, i); };
  return read_quant_numbers(group, kScaleFloor, quant) &&
         read_fields(group, {&quant->q_scale, &quant->k_scale, &quant->v_scale, &quant->k_pass_scale}, call) &&
         call->read_written(field(kQScalesOut), &quant->q_scales_out) &&
         call->read_written(field(kKScalesOut), &quant->k_scales_out) &&
         call->read_written(field(kVScalesOut), &quant->v_scales_out) &&
         call->read_written(field(kAmaxOut), &quant->amax_out);
}

enum CacheField : ptrdiff_t {
  kKCache,
  kVCache,
  kSlots,
  kPageTable,
  kPageIndptr,
  kSequence,
  kPositions,
  kKPassCache,
  kKScales,
  kVScales,
  kKPassScales,
  kSkipSlot0,
  kNumCacheFields
};

bool read_cache(PyObject *group, Call *call, rope_cache_args_t *cache) {
  const auto field = [group](CacheField i) { return PyTuple_GetItem(group, i); };
  const int skips = PyObject_IsTrue(field(kSkipSlot0));
  if (skips > 0) cache->flags = ROPE_CACHE_FLAG_SKIP_SLOT_0;
  return skips >= 0 && call->read_written(field(kKCache), &cache->k_cache) &&
         call->read_written(field(kVCache), &cache->v_cache) && call->read(field(kSlots), &cache->slots) &&
         call->read(field(kPageTable), &cache->page_table) && call->read(field(kPageIndptr), &cache->page_indptr) &&
         call->read(field(kSequence), &cache->sequence) && call->read(field(kPositions), &cache->positions) &&
         call->read_written(field(kKPassCache), &cache->k_pass_cache) &&
         call->read_written(field(kKScales), &cache->k_scales) &&
         call->read_written(field(kVScales), &cache->v_scales) &&
         call->read_written(field(kKPassScales), &cache->k_pass_scales);
}

// The caller's outputs: None, a tensor, or a tuple or list with one for each input.
class Outputs {
 public:
  Outputs(PyObject *out, int num_inputs) {
    const bool is_sequence = is_exactly(out, &PyTuple_Type) || is_exactly(out, &PyList_Type);
    are_valid_ = out == kNone || (is_sequence ? PySequence_Size(out) : 1) == num_inputs;
    for (int i = 0; are_valid_ && i < num_inputs; ++i) {
      outputs_[i].reset(is_sequence ? PySequence_GetItem(out, i) : new_reference(out));
      are_valid_ = static_cast<bool>(outputs_[i]);
    }
  }
  bool are_valid() const { return are_valid_; }
  PyObject *next() { return outputs_[next_++].get(); }

 private:
  bool are_valid_;
  int next_ = 0;
  Ref outputs_[3];
};

// rotate(desc, is_backward, q, k, v, out, positions, start_positions, cu_seqlens, cos, sin, angles, fault, norm, cache,
// quant, input, position_offset, table_rows, programmatic_launch, unrotated, v_unrotated): arguments of
// RopeDesc.forward.
PyObject *rotate(PyObject *, PyObject *const *arguments, ptrdiff_t count) {
  if (count != 22) return leave();
  PyObject *const *const inputs = arguments + 2, *const *const operands = arguments + 6;
  PyObject *const norm_group = arguments[13], *const cache_group = arguments[14], *const quant_group = arguments[15],
                  *const input_group = arguments[16];

  int num_inputs = 0;
  for (int i = 0; i < 3; ++i) num_inputs += inputs[i] != kNone;
  Outputs outputs(arguments[5], num_inputs);
  if (num_inputs == 0 || !outputs.are_valid()) return leave();

  Call call(arguments[0]);
  rope_args_t args = ROPE_ARGS_INIT;
  rope_norm_args_t norm = ROPE_NORM_ARGS_INIT;
  rope_cache_args_t cache = ROPE_CACHE_ARGS_INIT;
  rope_quant_args_t quant = ROPE_QUANT_ARGS_INIT;
  rope_input_args_t input = ROPE_INPUT_ARGS_INIT;
  const bool has_cache = cache_group != kNone, has_input = input_group != kNone;
  if (has_cache && !is_group(cache_group, types.cache, kNumCacheFields)) return leave();
  if (has_input && !is_group(input_group, types.input, kNumInputFields)) return leave();

  rope_tensor_t *const views[] = {&args.q, &args.k, &args.v};
  rope_tensor_t *const output_views[] = {&args.q_out, &args.k_out, &args.v_out};
  const bool is_zeroed = operands[2] != kNone;  // with cu_seqlens not every token is written
  for (int i = 0; i < 3; ++i) {
    PyObject *const x = inputs[i];
    if (x == kNone) continue;
    PyObject *const output = outputs.next();
    const bool has_pass = has_input && i < 2 && PyTuple_GetItem(input_group, i == 0 ? kQPass : kKPass) != kNone;
    const bool is_cached = has_cache && i > 0 && PyTuple_GetItem(cache_group, i == 1 ? kKCache : kVCache) != kNone;
    if (output == x) {
      if (!call.read_written(x, views[i])) return leave();
      if (is_cached) *output_views[i] = *views[i];  // an absent output would mean: cached only
      call.add_result(x);
    } else if (!call.read(x, views[i])) {
      return leave();
    } else if (output != kFalse) {
      if (!call.read_output(output, x, is_zeroed, output_views[i], has_pass)) return leave();
    } else if (is_cached) {
      call.add_result(kNone);
    } else {
      return leave();
    }
  }
  rope_tensor_t *const operand_views[] = {&args.positions, &args.start_positions, &args.cu_seqlens, &args.cos,
                                          &args.sin,       &args.angles};
  for (int i = 0; i < 6; ++i) {
    if (!call.read(operands[i], operand_views[i])) return leave();
  }
  if (!call.read_written(arguments[12], &args.fault)) return leave();
  if (norm_group != kNone) {
    if (!read_norm(norm_group, &call, &norm)) return leave();
    args.norm = &norm;
  }
  if (has_cache) {
    if (!read_cache(cache_group, &call, &cache)) return leave();
    args.cache = &cache;
  }
  if (quant_group != kNone) {
    if (!read_quant(quant_group, &call, &quant)) return leave();
    args.quant = &quant;
  }
  if (has_input) {
    if (!read_input(input_group, &call, &input)) return leave();
    args.input = &input;
  }
  int64_t table_rows = 0;
  if (!read_integer(arguments[17], &args.position_offset) || !read_integer(arguments[18], &table_rows)) return leave();
  args.table_rows = static_cast<int32_t>(table_rows);
  if (args.table_rows != table_rows) return leave();
  const uint32_t flags[] = {ROPE_FLAG_PROGRAMMATIC_LAUNCH, ROPE_FLAG_UNROTATED, ROPE_FLAG_V_UNROTATED};
  for (int i = 0; i < 3; ++i) {
    const int is_set = PyObject_IsTrue(arguments[19 + i]);
    if (is_set < 0) return leave();
    if (is_set != 0) args.flags |= flags[i];
  }
  const bool is_backward = PyObject_IsTrue(arguments[1]) != 0;
  return call.run(is_backward ? rope->backward_rope : rope->forward_rope, args, false);
}

// ---- SwiGLU ----

// Reads the operands from row_scale on, and programmatic_launch.
bool read_gating(PyObject *const *operands, Call *call, swiglu_args_t *args, swiglu_input_args_t *input) {
  rope_tensor_t *const views[] = {&args->row_scale,    &args->num_rows,        &input->gate_bias, &input->up_bias,
                                  &input->expert_rows, &input->expert_offsets, &input->row_index};
  for (int i = 0; i < 7; ++i) {
    if (!call->read(operands[i], views[i])) return false;
    if (i >= 2 && operands[i] != kNone) args->input = input;
  }
  const int is_programmatic = PyObject_IsTrue(operands[7]);
  if (is_programmatic > 0) args->flags = ROPE_FLAG_PROGRAMMATIC_LAUNCH;
  return is_programmatic >= 0;
}

bool has_rows_left_out(PyObject *const *operands) {
  return operands[1] != kNone || operands[4] != kNone || operands[5] != kNone || operands[6] != kNone;
}

enum SwigluQuantField : ptrdiff_t {
  kScale,
  kScalesOut,
  kSwigluAmaxOut,
  kGradGateScalesOut,  // this and the next are for swiglu_backward
  kGradUpScalesOut,
  kSwigluScaleFloor,
  kScaleLayout = kSwigluScaleFloor + 3,
  kNumSwigluQuantFields
};

bool read_swiglu_quant(PyObject *group, Call *call, swiglu_quant_args_t *quant) {
  if (!is_group(group, types.swiglu_quant, kNumSwigluQuantFields)) return false;
  const auto field = [group](SwigluQuantField i) { return PyTuple_GetItem(group, i); };
  return field(kScaleLayout) == types.strided && field(kGradGateScalesOut) == kNone &&
         field(kGradUpScalesOut) == kNone && read_quant_numbers(group, kSwigluScaleFloor, quant) &&
         call->read(field(kScale), &quant->scale) && call->read_written(field(kScalesOut), &quant->scales_out) &&
         call->read_written(field(kSwigluAmaxOut), &quant->amax_out);
}

// gate(desc, gate, up, out, row_scale, num_rows, gate_bias, up_bias, expert_rows, expert_offsets, row_index,
// programmatic_launch, quant): arguments of SwigluDesc.forward.
PyObject *gate(PyObject *, PyObject *const *arguments, ptrdiff_t count) {
  if (count != 13) return leave();
  PyObject *const *const operands = arguments + 4;
  Call call(arguments[0]);
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  if (arguments[1] == kNone || !call.read(arguments[1], &args.gate) || !call.read(arguments[2], &args.up) ||
      !call.read_output(arguments[3], arguments[1], has_rows_left_out(operands), &args.out) ||
      !read_gating(operands, &call, &args, &input)) {
    return leave();
  }
  swiglu_quant_args_t quant = SWIGLU_QUANT_ARGS_INIT;
  if (arguments[12] != kNone) {
    if (!read_swiglu_quant(arguments[12], &call, &quant)) return leave();
    args.quant = &quant;
  }
  return call.run(rope->forward_swiglu, args, false);
}

// gate_back(desc, grad_out, gate, up, grad_gate, grad_up, grad_row_scale, out, row_scale, num_rows, gate_bias, up_bias,
// expert_rows, expert_offsets, row_index, programmatic_launch): arguments of SwigluDesc.backward.
PyObject *gate_back(PyObject *, PyObject *const *arguments, ptrdiff_t count) {
  if (count != 16) return leave();
  PyObject *const *const operands = arguments + 8;
  PyObject *const inputs[] = {arguments[2], arguments[3], operands[0]};
  Call call(arguments[0]);
  swiglu_args_t args = SWIGLU_ARGS_INIT;
  swiglu_input_args_t input = SWIGLU_INPUT_ARGS_INIT;
  if (arguments[2] == kNone || !call.read(arguments[1], &args.grad_out) || !call.read(inputs[0], &args.gate) ||
      !call.read(inputs[1], &args.up) || !read_gating(operands, &call, &args, &input)) {
    return leave();
  }
  rope_tensor_t *const gradients[] = {&args.grad_gate, &args.grad_up, &args.grad_row_scale};
  for (int i = 0; i < 3; ++i) {
    PyObject *const gradient = arguments[4 + i];
    if (inputs[i] == kNone) {  // there is no result for row_scale
      if (gradient != kNone) return leave();
    } else if (gradient == kFalse) {
      call.add_result(kNone);
    } else if (i == 2 && gradient == kNone && operands[6] != kNone) {
      return leave();  // the result has another shape than row_scale
    } else if (!call.read_output(gradient, inputs[i], has_rows_left_out(operands), gradients[i])) {
      return leave();
    }
  }
  if (!call.read_written(arguments[7], &args.out)) return leave();
  return call.run(rope->backward_swiglu, args, true);
}

// ---- Loading ----

// add_torch(types, empty_like, zeros_like, widened, wrote, capsule, forward_ad, is_grad_enabled, questions): returns
// whether torch's tensors can be read.
PyObject *add_torch(PyObject *, PyObject *const *arguments, ptrdiff_t count) {
  if (count != 9) return leave();
  auto *const api = static_cast<const DlExchangeApi *>(PyCapsule_GetPointer(arguments[5], "dlpack_exchange_api"));
  if (api == nullptr || api->major != 1 || api->read == nullptr || api->current_stream == nullptr) return leave();
  for (ptrdiff_t i = 0; i < count; ++i) Py_IncRef(arguments[i]);
  torch_state = {api, arguments[6], arguments[7], arguments[8]};
  PyObject *const tensor = PyTuple_GetItem(arguments[0], 0), *const parameter = PyTuple_GetItem(arguments[0], 1);
  torch = {read_torch,   is_plain_torch, is_torch_transformed, {tensor, parameter},
           arguments[1], arguments[2],   arguments[3],         arguments[4]};
  return new_reference(&_Py_TrueStruct);
}

// add_numpy(ndarray, empty_like, zeros_like, widened)
PyObject *add_numpy(PyObject *, PyObject *const *arguments, ptrdiff_t count) {
  if (count != 4) return leave();
  for (ptrdiff_t i = 0; i < count; ++i) Py_IncRef(arguments[i]);
  numpy = {read_numpy,   is_plain_numpy, is_numpy_transformed, {arguments[0], arguments[0]},
           arguments[1], arguments[2],   arguments[3],         nullptr};
  return new_reference(&_Py_TrueStruct);
}

PyMethodDef builtins[] = {{"rotate", rotate, kMethFastCall, nullptr},
                          {"gate", gate, kMethFastCall, nullptr},
                          {"gate_back", gate_back, kMethFastCall, nullptr},
                          {"add_torch", add_torch, kMethFastCall, nullptr},
                          {"add_numpy", add_numpy, kMethFastCall, nullptr}};

bool intern(PyObject **name, const char *text) {
  return (*name = PyUnicode_InternFromString(text)) != nullptr;
}

}  // namespace

// Returns a tuple of the builtins, in their order above, or an exception. It must be called by the main interpreter,
// with the GIL, once in a process; a second call returns None. version: the ROPE_VERSION of the calling package; another
// version returns NotImplemented.
// The functions are read at each call and must live as long as the process. classes: Norm, Cache, Quant, Input,
// SwigluQuant and TableRows, then ScaleLayout.STRIDED. keys: those of a descriptor's handles, for the CPU and for each
// supported device of CUDA.
extern "C" __attribute__((visibility("default"))) PyObject *rope_python_load(int32_t version,
                                                                             const RopeFunctions *functions,
                                                                             PyObject *classes, PyObject *keys) {
  if (version != ROPE_VERSION) return leave();
  if (rope != nullptr) return new_reference(kNone);
  rope = functions;
  for (PyObject *object : {classes, keys}) Py_IncRef(object);  // never freed
  types = {PyTuple_GetItem(classes, 0), PyTuple_GetItem(classes, 1), PyTuple_GetItem(classes, 2),
           PyTuple_GetItem(classes, 3), PyTuple_GetItem(classes, 4), PyTuple_GetItem(classes, 5),
           PyTuple_GetItem(classes, 6)};
  for (int i = 0; i <= kMaxOrdinals; ++i) {
    device_keys[i] = PyTuple_GetItem(keys, i);
    if (device_keys[i] == nullptr) return nullptr;
  }
  if (!intern(&names.array_struct, "__array_struct__") || !intern(&names.config, "_config") ||
      !intern(&names.head_dim, "head_dim") || !intern(&names.current_level, "_current_level") ||
      !intern(&names.handle_on, "_handle_on") || !intern(&names.handles, "_handles") ||
      !intern(&names.is_neg, "is_neg") || !intern(&names.pointer, "pointer") ||
      !intern(&names.requires_grad, "requires_grad")) {
    return nullptr;
  }
  Ref loaded(PyTuple_New(sizeof builtins / sizeof builtins[0]));
  if (!loaded) return nullptr;
  ptrdiff_t i = 0;
  for (PyMethodDef &builtin : builtins) {
    PyObject *const function = PyCFunction_NewEx(&builtin, nullptr, nullptr);
    if (function == nullptr) return nullptr;
    PyTuple_SetItem(loaded.get(), i++, function);
  }
  return loaded.release();
}
