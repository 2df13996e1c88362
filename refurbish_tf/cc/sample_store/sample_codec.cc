#include "refurbish_tf/cc/sample_store/sample_codec.h"

#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/ragged_tensor_variant.h"
#include "tensorflow/core/platform/tensor_coding.h"

namespace refurbish_tf {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeVector;
using tensorflow::RaggedTensorVariant;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorProto;
using tensorflow::TensorShape;
using tensorflow::Variant;
using tensorflow::VariantTensorDataProto;

// A component of this size or more stays in the record's memory when it is
// read, so it is aligned as TensorFlow requires.
constexpr size_t kInPlace = 512;
constexpr size_t kAlignment = RecordBuffer::kAlignment;
// How deeply tensors can be nested in variants.
constexpr int kMostNested = 16;

// One per component. The sizes of its dimensions follow, as int64.
struct ComponentHeader {
  uint32_t dtype;
  uint32_t rank;
  uint64_t offset;  // In the payload.
  uint64_t size;
};

// The first offset in the payload, from `offset` on, that is aligned in memory.
size_t Aligned(size_t offset) {
  const size_t in_record = sizeof(RecordHeader) + offset;
  return (in_record + kAlignment - 1) / kAlignment * kAlignment -
         sizeof(RecordHeader);
}

// The offsets of components of the given sizes after a header. `*end` is the
// end of the last component.
std::vector<size_t> Layout(size_t header, const std::vector<size_t>& sizes,
                           size_t* end) {
  std::vector<size_t> offsets(sizes.size());
  *end = header;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= kInPlace) continue;
    offsets[i] = *end;
    *end += sizes[i];
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < kInPlace) continue;
    offsets[i] = Aligned(*end);
    *end = offsets[i] + sizes[i];
  }
  return offsets;
}

size_t HeaderSize(int rank) {
  return sizeof(ComponentHeader) + rank * sizeof(int64_t);
}

absl::Status CheckVariants(const Tensor& tensor) {
  const auto flat = tensor.flat<Variant>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    if (flat(i).get<Tensor>() == nullptr &&
        flat(i).get<RaggedTensorVariant>() == nullptr) {
      return InvalidArgument(
          "A sample holds a ", flat(i).TypeName(),
          ", which a cache store on disk cannot keep. Keep it in memory, or let "
          "partial_fn return tensors.");
    }
  }
  return absl::OkStatus();
}

// Whether a tensor, and each one in its variants, has at least one byte per
// element. TensorFlow allocates as many elements as a shape claims, so a forged
// record could exhaust the memory.
bool HoldsItsElements(const TensorProto& proto, int depth = 0) {
  if (depth > kMostNested || !TensorShape::IsValid(proto.tensor_shape())) {
    return false;
  }
  const int64_t size = TensorShape(proto.tensor_shape()).num_elements();
  if (size > static_cast<int64_t>(proto.ByteSizeLong())) return false;
  std::vector<VariantTensorDataProto> variants(proto.variant_val().begin(),
                                               proto.variant_val().end());
  if (proto.dtype() == tensorflow::DT_VARIANT &&
      !proto.tensor_content().empty()) {
    std::vector<uint32_t> sizes(size);
    const auto list =
        tensorflow::port::NewStringListDecoder(proto.tensor_content());
    if (!list->ReadSizes(&sizes)) return false;
    for (const uint32_t bytes : sizes) {
      if (!variants.emplace_back().ParseFromArray(list->Data(bytes), bytes)) {
        return false;
      }
    }
  }
  for (const VariantTensorDataProto& variant : variants) {
    for (const TensorProto& tensor : variant.tensors()) {
      if (!HoldsItsElements(tensor, depth + 1)) return false;
    }
  }
  return true;
}

// A view of a record's memory. Keeps the record alive.
class PartOfRecord : public TensorBuffer {
 public:
  PartOfRecord(std::shared_ptr<RecordBuffer> record, size_t offset, size_t size)
      : TensorBuffer(const_cast<char*>(record->payload()) + offset),
        record_(std::move(record)),
        size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(size_);
    description->set_allocator_name("refurbish_tf");
  }

 private:
  const std::shared_ptr<RecordBuffer> record_;
  const size_t size_;
};

}  // namespace

absl::Status CheckEncodable(const DataTypeVector& dtypes) {
  for (const DataType dtype : dtypes) {
    if (dtype == tensorflow::DT_RESOURCE) {
      return InvalidArgument(
          "A partially augmented sample has a component that is a resource, "
          "which a cache store on disk cannot keep. Keep it in memory, with "
          "store=None, or let partial_fn return tensors.");
    }
  }
  return absl::OkStatus();
}

int64_t FixedEncodedBytes(const SampleTypes& types) {
  if (FixedSampleBytes(types) < 0) return -1;
  size_t header = sizeof(uint64_t);
  std::vector<size_t> sizes;
  for (size_t i = 0; i < types.dtypes.size(); ++i) {
    header += HeaderSize(types.shapes[i].dims());
    sizes.push_back(types.shapes[i].num_elements() *
                    tensorflow::DataTypeSize(types.dtypes[i]));
  }
  size_t end;
  Layout(header, sizes, &end);
  return end;
}

absl::Status EncodedSample::Encode(const Sample& sample,
                                   EncodedSample* encoded) {
  size_t header_size = sizeof(uint64_t);
  std::vector<absl::string_view> contents;
  std::vector<size_t> sizes;
  for (const Tensor& tensor : sample) {
    header_size += HeaderSize(tensor.dims());
    if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
      contents.push_back(tensor.tensor_data());
    } else {
      if (tensor.dtype() == tensorflow::DT_VARIANT) {
        RTF_RETURN_IF_ERROR(CheckVariants(tensor));
      }
      TensorProto proto;
      tensor.AsProtoTensorContent(&proto);
      encoded->serialized_.push_back(proto.SerializeAsString());
      contents.push_back(encoded->serialized_.back());
    }
    sizes.push_back(contents.back().size());
  }
  size_t end;
  const std::vector<size_t> offsets = Layout(header_size, sizes, &end);
  if (end > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument(
        "A sample of ", end,
        " bytes is too large for a cache store on disk, which takes at most ",
        kMaxRecord, " bytes.");
  }

  std::string& header = encoded->header_;
  header.reserve(header_size + kAlignment);
  const auto append = [&header](const void* data, size_t size) {
    header.append(static_cast<const char*>(data), size);
  };
  const uint64_t count = sample.size();
  append(&count, sizeof(count));
  for (size_t i = 0; i < sample.size(); ++i) {
    const ComponentHeader component{static_cast<uint32_t>(sample[i].dtype()),
                                    static_cast<uint32_t>(sample[i].dims()),
                                    offsets[i], sizes[i]};
    append(&component, sizeof(component));
    for (int d = 0; d < sample[i].dims(); ++d) {
      const int64_t size = sample[i].dim_size(d);
      append(&size, sizeof(size));
    }
  }
  // The small components follow the header directly.
  for (size_t i = 0; i < sample.size(); ++i) {
    if (sizes[i] < kInPlace) append(contents[i].data(), contents[i].size());
  }
  static char zeros[kAlignment] = {};
  size_t position = header.size();
  encoded->parts_.push_back({header.data(), header.size()});
  for (size_t i = 0; i < sample.size(); ++i) {
    if (sizes[i] < kInPlace) continue;
    if (offsets[i] > position) {
      encoded->parts_.push_back({zeros, offsets[i] - position});
    }
    encoded->parts_.push_back(
        {const_cast<char*>(contents[i].data()), contents[i].size()});
    position = offsets[i] + sizes[i];
  }
  return absl::OkStatus();
}

bool DecodeSample(RecordBuffer record, Sample* sample) {
  const size_t payload_size = record.payload_size();
  const auto owner = std::make_shared<RecordBuffer>(std::move(record));
  const char* const payload = owner->payload();
  size_t position = 0;
  // Trusts nothing: the checksum is correct, but any program may have written
  // the record.
  const auto read = [&](void* to, size_t size) {
    if (size > payload_size - position) return false;
    std::memcpy(to, payload + position, size);
    position += size;
    return true;
  };
  uint64_t count;
  if (!read(&count, sizeof(count)) ||
      count > payload_size / sizeof(ComponentHeader)) {
    return false;
  }
  sample->clear();
  sample->reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    ComponentHeader component;
    if (!read(&component, sizeof(component)) ||
        component.rank > TensorShape::MaxDimensions() ||
        component.offset > payload_size ||
        component.size > payload_size - component.offset ||
        !tensorflow::DataType_IsValid(component.dtype) ||
        tensorflow::IsRefType(static_cast<DataType>(component.dtype)) ||
        (component.size >= kInPlace &&
         Aligned(component.offset) != component.offset)) {
      return false;
    }
    TensorShape shape;
    for (uint32_t d = 0; d < component.rank; ++d) {
      int64_t size;
      if (!read(&size, sizeof(size)) || !shape.AddDimWithStatus(size).ok()) {
        return false;
      }
    }
    const char* const data = payload + component.offset;
    const DataType dtype = static_cast<DataType>(component.dtype);
    if (!tensorflow::DataTypeCanUseMemcpy(dtype)) {
      TensorProto proto;
      Tensor tensor;
      if (!proto.ParseFromArray(data, component.size) ||
          !HoldsItsElements(proto) || !tensor.FromProto(proto) ||
          tensor.dtype() != dtype || tensor.shape() != shape) {
        return false;
      }
      sample->push_back(std::move(tensor));
      continue;
    }
    const uint64_t element = tensorflow::DataTypeSize(dtype);
    if (element == 0 || component.size % element != 0 ||
        shape.num_elements() !=
            static_cast<int64_t>(component.size / element)) {
      return false;
    }
    if (component.size < kInPlace) {
      Tensor tensor(dtype, shape);
      if (component.size > 0) {
        std::memcpy(const_cast<char*>(tensor.tensor_data().data()), data,
                    component.size);
      }
      sample->push_back(std::move(tensor));
    } else {
      tensorflow::core::RefCountPtr<TensorBuffer> buffer(
          new PartOfRecord(owner, component.offset, component.size));
      sample->push_back(Tensor(dtype, shape, std::move(buffer)));
    }
  }
  return true;
}

}  // namespace refurbish_tf
