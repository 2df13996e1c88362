// Partially augmented samples as bytes, for the cache store on disk.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/store/record.h"

namespace refurbish_tf {

// Fails if samples of these types can never be encoded: those with resources.
// Variants can be encoded if they hold dense, ragged or sparse tensors.
absl::Status CheckEncodable(const tensorflow::DataTypeVector& dtypes);

// The encoded bytes of each sample of these types, or -1 if they vary.
int64_t FixedEncodedBytes(const SampleTypes& types);

// The payload of a record: a header with the type, shape and offset of each
// component, then the small components and, aligned, the others. Tensor data is
// not copied if possible, so the sample must outlive this object.
class EncodedSample {
 public:
  // Fails if the sample cannot be encoded.
  static absl::Status Encode(const Sample& sample, EncodedSample* encoded);
  const std::vector<iovec>& parts() const { return parts_; }

 private:
  std::string header_;
  std::deque<std::string> serialized_;
  std::vector<iovec> parts_;
};

// Decodes the sample of a record. Its larger components share the record's
// memory and keep it alive. False if the payload is not a sample.
bool DecodeSample(RecordBuffer record, Sample* sample);

}  // namespace refurbish_tf
