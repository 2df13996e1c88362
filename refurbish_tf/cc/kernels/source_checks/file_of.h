// Finds the file that an element of a source was made from.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/op_lists.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/tstring.h"

namespace refurbish_tf {

// Returns "" if the file is unknown. It is known if it exists, and element i is
// made from slice i of a tensor of names, or by a source that knows its files.
// Slow, because it looks for the file: only for error messages.
inline std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                          int64_t index) {
  // Goes upstream while element i is made from element i of the input.
  while (HasTrait(source->type_string(), kOneOfEach) ||
         source->type_string() == "TakeDataset") {
    std::vector<const DatasetBase*> inputs;
    if (!source->InputDatasets(&inputs).ok() || inputs.size() != 1) return "";
    source = inputs[0];
  }
  std::string file;
  if (const auto* const own = dynamic_cast<const NamedDataset*>(source)) {
    file = own->FileOf(index);
  }
  std::vector<Tensor> tensors;
  if (source->type_string() == "TensorSliceDataset") {
    source->Get(AnyContext(ctx), index, &tensors).IgnoreError();
  }
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() != tensorflow::DT_STRING) continue;
    if (!file.empty() || tensor.dims() != 0) return "";
    file = tensor.scalar<tstring>()();
  }
  // The string may also be other text, or the contents of a file.
  return file.size() < PATH_MAX && file.find('\0') == std::string::npos &&
                 tensorflow::Env::Default()->FileExists(file).ok()
             ? file
             : "";
}

}  // namespace refurbish_tf
