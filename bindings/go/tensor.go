// SPDX-License-Identifier: Apache-2.0

package rope

// #include "shim.h"
import "C"

import "unsafe"

// Dtype is rope_dtype_t.
type Dtype int32

const (
	F32  Dtype = C.ROPE_DTYPE_F32
	F16  Dtype = C.ROPE_DTYPE_F16
	BF16 Dtype = C.ROPE_DTYPE_BF16
	F64  Dtype = C.ROPE_DTYPE_F64
	I32  Dtype = C.ROPE_DTYPE_I32 // positions only
	I64  Dtype = C.ROPE_DTYPE_I64 // positions only

	// Outputs and caches only, and written scales of F4E2M1X2; largest 448, NaN, no infinity
	F8E4M3 Dtype = C.ROPE_DTYPE_F8_E4M3
	F8E5M2 Dtype = C.ROPE_DTYPE_F8_E5M2 // outputs and caches only; largest 57344, NaN
	F8E8M0 Dtype = C.ROPE_DTYPE_F8_E8M0 // written scales only; 2^(byte - 127), 255 is NaN

	// SwiGLU's output only. An element is a byte of two neighbouring channels, and shape and strides count bytes. The
	// largest number is 6, and NaN becomes 6 too.
	F4E2M1X2 Dtype = C.ROPE_DTYPE_F4_E2M1X2
)

// Float16 holds the bits of an IEEE binary16 number.
type Float16 uint16

// BFloat16 holds the bits of a bfloat16 number.
type BFloat16 uint16

// Float8E4M3 holds the code of a number in OCP's E4M3.
type Float8E4M3 uint8

// Float8E5M2 holds the code of a number in OCP's E5M2.
type Float8E5M2 uint8

// Float8E8M0 holds the exponent of a power of two in OCP's E8M0, plus 127.
type Float8E8M0 uint8

// Float4E2M1X2 holds the codes of two neighbouring channels in OCP's E2M1, that of the even channel in the low four
// bits.
type Float4E2M1X2 uint8

// Element is the type of a slice's elements.
type Element interface {
	float32 | float64 | Float16 | BFloat16 | Float8E4M3 | Float8E5M2 | Float8E8M0 | Float4E2M1X2 | int32 | int64
}

func dtypeOf[T Element]() Dtype {
	var zero T
	switch any(zero).(type) {
	case float32:
		return F32
	case float64:
		return F64
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case Float8E4M3:
		return F8E4M3
	case Float8E5M2:
		return F8E5M2
	case Float8E8M0:
		return F8E8M0
	case Float4E2M1X2:
		return F4E2M1X2
	case int32:
		return I32
	default:
		return I64
	}
}

// MaxRank is the largest number of axes of a tensor.
const MaxRank = 4

// Tensor is a view of memory. The zero Tensor is an absent operand. A call reports the errors of its tensors.
type Tensor struct {
	host    unsafe.Pointer // the element with all indices 0, in a slice; nil for memory of a device
	address uintptr        // the address of that element on a device
	dtype   Dtype
	rank    int
	shape   [MaxRank]int64
	stride  [MaxRank]int64
	wrong   error
}

// Of, the usual constructor, views a slice in row-major order, for example as [tokens, heads, channels].
func Of[T Element](data []T, shape ...int64) Tensor {
	return Strided(data, 0, shape, compact(shape))
}

// Strided views a slice with any strides, in elements, from the element at index start on. An input may repeat with
// stride 0.
func Strided[T Element](data []T, start int64, shape, stride []int64) Tensor {
	tensor := view(dtypeOf[T](), shape, stride)
	if tensor.wrong != nil || tensor.isEmpty() {
		return tensor
	}
	low, high, length := start, start, int64(len(data))
	for axis, n := range shape {
		step := stride[axis]
		if n > 1 && (step > length/(n-1) || step < -(length/(n-1))) { // so that no later product overflows
			low, high = -1, length
			break
		}
		if reach := (n - 1) * step; reach < 0 {
			low += reach
		} else {
			high += reach
		}
	}
	if start < 0 || start >= length || low < 0 || high >= length {
		tensor.wrong = invalid("tensor: shape is %v, strides %v and the first element %d: all must lie within the "+
			"slice's %d elements", shape, stride, start, length)
		return tensor
	}
	tensor.host = unsafe.Pointer(&data[start])
	return tensor
}

// At views memory of a device in row-major order.
func At(address uintptr, dtype Dtype, shape ...int64) Tensor {
	return StridedAt(address, dtype, shape, compact(shape))
}

// StridedAt views memory of a device with any strides, in elements. The package cannot check this memory: it must stay
// valid until the stream of the call has done its work.
func StridedAt(address uintptr, dtype Dtype, shape, stride []int64) Tensor {
	tensor := view(dtype, shape, stride)
	tensor.address = address
	return tensor
}

// Narrow returns the part with indices start to start + length - 1 along an axis: the q heads of a packed tensor.
func (t Tensor) Narrow(axis int, start, length int64) Tensor {
	if t.wrong != nil {
		return t
	}
	if axis < 0 || axis >= t.rank || start < 0 || length < 0 || start > t.shape[axis] || length > t.shape[axis]-start {
		t.wrong = invalid("tensor: Narrow(%d, %d, %d) of shape %v: the range must lie within the axis", axis, start,
			length, t.shape[:t.rank])
		return t
	}
	t.shape[axis] = length
	if !t.isEmpty() {
		t.advance(start * t.stride[axis])
	}
	return t
}

// Select returns the slice at an index along an axis, without that axis.
func (t Tensor) Select(axis int, index int64) Tensor {
	if t.wrong != nil {
		return t
	}
	if t.rank < 2 || axis < 0 || axis >= t.rank || index < 0 || index >= t.shape[axis] {
		t.wrong = invalid("tensor: Select(%d, %d) of shape %v: the index must lie within the axis, and an axis must "+
			"be left", axis, index, t.shape[:t.rank])
		return t
	}
	if !t.isEmpty() {
		t.advance(index * t.stride[axis])
	}
	copy(t.shape[axis:], t.shape[axis+1:])
	copy(t.stride[axis:], t.stride[axis+1:])
	t.rank--
	t.shape[t.rank], t.stride[t.rank] = 0, 0
	return t
}

// Shape returns the length of each axis.
func (t Tensor) Shape() []int64 { return append([]int64(nil), t.shape[:t.rank]...) }

func (t *Tensor) isEmpty() bool {
	for _, n := range t.shape[:t.rank] {
		if n == 0 {
			return true
		}
	}
	return false
}

func (t *Tensor) advance(elements int64) {
	size := int64(4)
	switch t.dtype {
	case F8E4M3, F8E5M2, F8E8M0, F4E2M1X2:
		size = 1
	case F16, BF16:
		size = 2
	case F64, I64:
		size = 8
	}
	if t.host != nil {
		t.host = unsafe.Add(t.host, elements*size)
	} else {
		t.address += uintptr(elements * size)
	}
}

func compact(shape []int64) []int64 {
	stride := make([]int64, len(shape))
	next := int64(1)
	for axis := len(shape) - 1; axis >= 0; axis-- {
		stride[axis] = next
		if n := shape[axis]; n > 0 && next <= (1<<62)/n {
			next *= n
		}
	}
	return stride
}

func view(dtype Dtype, shape, stride []int64) Tensor {
	tensor := Tensor{dtype: dtype, rank: len(shape)}
	if len(shape) < 1 || len(shape) > MaxRank || len(stride) != len(shape) {
		tensor.wrong = invalid("tensor: shape is %v and strides are %v: both must have 1 to %d axes, and as many", shape,
			stride, MaxRank)
		return tensor
	}
	for _, n := range shape {
		if n < 0 {
			tensor.wrong = invalid("tensor: shape is %v: an axis must not be negative", shape)
			return tensor
		}
	}
	copy(tensor.shape[:], shape)
	copy(tensor.stride[:], stride)
	return tensor
}

// fill writes the view without its memory, and returns the memory.
func (t *Tensor) fill(call, field string, device Device, c *C.rope_tensor_t) (unsafe.Pointer, uintptr, error) {
	if t.wrong != nil {
		return nil, 0, invalid("%s: %s: %s", call, field, t.wrong.(*Error).Text)
	}
	if t.rank == 0 {
		return nil, 0, nil
	}
	if !t.isEmpty() && (t.host != nil) != (device == CPU) {
		return nil, 0, invalid("%s: %s is of a slice or of a device: it must be of what the descriptor is for", call,
			field)
	}
	c.dtype = C.rope_dtype_t(t.dtype)
	c.ndim = C.uint16_t(t.rank)
	c.flags = C.ROPE_TENSOR_STRIDED
	for axis := range t.shape {
		c.shape[axis] = C.int64_t(t.shape[axis])
		c.stride[axis] = C.int64_t(t.stride[axis])
	}
	return t.host, t.address, nil
}

// first returns the address of a slice's first element, or nil if it has none.
func first[T any](data []T) unsafe.Pointer {
	if len(data) == 0 {
		return nil
	}
	return unsafe.Pointer(&data[0])
}
