// The records of TFRecord files, by index.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/sources/indexed_dataset.h"
#include "refurbish_tf/cc/kernels/sources/tensorflow_files.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "refurbish_tf/cc/sources/record_index.h"

namespace refurbish_tf {
namespace {

class TfrecordDataset : public IndexedDataset {
 public:
  TfrecordDataset(OpKernelContext* ctx, int64_t num_readers,
                  std::shared_ptr<const RecordIndex> index)
      : IndexedDataset(ctx, "Tfrecord", "rtf.sources.tfrecord", {DT_STRING},
                       {PartialTensorShape({})},
                       {index->num_records(), num_readers}),
        index_(std::move(index)) {}

  absl::Status ReadOne(int64_t index, int64_t since,
                       Components* element) const override {
    Tensor read(DT_STRING, TensorShape({}));
    tstring& text = read.scalar<tstring>()();
    const absl::Status status = ReadRecord(
        &OpenFiles::Global(), index_->At(index), since, [&text](size_t length) {
          text.resize_uninitialized(length);
          return text.mdata();
        });
    if (!status.ok()) return Printable(status);
    element->push_back(std::move(read));
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const RecordIndex> index_;
};

class TfrecordDatasetOp : public DatasetOpKernel {
 public:
  using DatasetOpKernel::DatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    std::vector<tstring> files;
    std::string name;
    int64_t num_readers;
    IndexOptions options;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(
                            ctx, "files", &files));
    OP_REQUIRES_OK(
        ctx, GetScalars(ctx, "index_dir", &options.directory, "index", &name));
    OP_REQUIRES_OK(ctx, GetNumReads(ctx, &num_readers));
    options.num_threads = static_cast<int>(num_readers);
    options.access = AccessTo;
    absl::Status status;
    // A graph rewrite makes the dataset again: it finds the same index by name.
    std::shared_ptr<const RecordIndex> index =
        Registry<const RecordIndex>::Global().GetOrCreate(
            name, [&]() -> std::shared_ptr<const RecordIndex> {
              auto made =
                  LoadOrMakeIndex({files.begin(), files.end()}, options);
              if (!made.ok()) status = Printable(made.status());
              return made.ok() ? *std::move(made) : nullptr;
            });
    OP_REQUIRES_OK(ctx, status);
    *output = new TfrecordDataset(ctx, num_readers, std::move(index));
  }
};

REFURBISH_TF_KERNEL("TfrecordDataset", TfrecordDatasetOp);

}  // namespace
}  // namespace refurbish_tf
