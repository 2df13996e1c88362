// Whole files with their labels, by index.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/base/memory.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/sources/indexed_dataset.h"
#include "refurbish_tf/cc/kernels/sources/tensorflow_files.h"
#include "refurbish_tf/cc/sources/file_access.h"

namespace refurbish_tf {
namespace {

// Smaller files are read without checking the free memory.
constexpr uint64_t kLargeFile = 1 << 28;

absl::Status ReadWhole(const std::string& path, tstring* content) {
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<RandomFile> file,
                      AccessTo(path)->Open(path));
  TF_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
  if (identity.size > kLargeFile) {
    const int64_t free = ReadMemory().free;
    if (identity.size > static_cast<uint64_t>(free)) {
      return ResourceExhausted(
          path, " has ", identity.size, " bytes, but there are only ", free,
          " bytes of memory for it. Check that it is an image.");
    }
  }
  content->resize_uninitialized(identity.size);
  TF_ASSIGN_OR_RETURN(const size_t read,
                      file->Read(0, identity.size, content->mdata()));
  content->resize(read);
  return absl::OkStatus();
}

class ImageFilesDataset : public IndexedDataset {
 public:
  // `files` and `labels` are vectors of the same length.
  ImageFilesDataset(OpKernelContext* ctx, Tensor files, Tensor labels,
                    int64_t num_readers)
      : IndexedDataset(ctx, "ImageFiles", "rtf.sources.image_folder",
                       {DT_STRING, tensorflow::DT_INT32},
                       {PartialTensorShape({}), PartialTensorShape({})},
                       {files.NumElements(), num_readers}),
        files_(std::move(files)),
        labels_(std::move(labels)) {}

  std::string FileOf(int64_t index) const override {
    return files_.vec<tstring>()(index);
  }

  absl::Status ReadOne(int64_t index, int64_t /*since*/,
                       Components* element) const override {
    Tensor content(DT_STRING, TensorShape({}));
    const absl::Status status =
        ReadWhole(FileOf(index), &content.scalar<tstring>()());
    if (!status.ok()) return Printable(status);
    element->push_back(std::move(content));
    element->emplace_back(labels_.vec<int32_t>()(index));
    return absl::OkStatus();
  }

 private:
  const Tensor files_, labels_;
};

class ImageFilesDatasetOp : public DatasetOpKernel {
 public:
  using DatasetOpKernel::DatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    const Tensor *files, *labels;
    OP_REQUIRES_OK(ctx, ctx->input("files", &files));
    OP_REQUIRES_OK(ctx, ctx->input("labels", &labels));
    OP_REQUIRES(ctx, files->dims() == 1 && labels->shape() == files->shape(),
                InvalidArgument(
                    "files and labels must be vectors of the same length."));
    int64_t num_readers;
    OP_REQUIRES_OK(ctx, GetNumReads(ctx, &num_readers));
    *output = new ImageFilesDataset(ctx, *files, *labels, num_readers);
  }
};

REFURBISH_TF_KERNEL("ImageFilesDataset", ImageFilesDatasetOp);

}  // namespace
}  // namespace refurbish_tf
