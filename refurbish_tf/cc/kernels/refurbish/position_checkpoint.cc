#include "refurbish_tf/cc/kernels/refurbish/position_checkpoint.h"

#include <type_traits>

#include "refurbish_tf/cc/base/printable.h"

namespace refurbish_tf {
namespace {

// Raise this if an older package could not read what this one saves.
constexpr int64_t kVersionNow = 6;
constexpr char kVersion[] = "version";

}  // namespace

absl::Status WritePosition(IteratorStateWriter* writer,
                           const std::string& prefix, const std::string& stage,
                           EpochPosition position) {
  absl::Status written = writer->WriteScalar(prefix, kVersion, kVersionNow);
  written.Update(writer->WriteScalar(prefix, kSavedStage, tstring(stage)));
  ForEachField(&position, [&](const char* key, const auto* value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(*value)>>) {
      written.Update(
          writer->WriteScalar(prefix, key, static_cast<int64_t>(*value)));
    } else {
      written.Update(writer->WriteTensor(prefix, key, Tensor(*value)));
    }
  });
  return written;
}

absl::Status ReadPosition(const CheckpointReader& reader,
                          EpochPosition* position) {
  int64_t version = 0;
  TF_RETURN_IF_ERROR(reader.ReadScalar(kVersion, &version));
  if (version != kVersionNow) {
    return InvalidArgument("The checkpoint of refurbish has version ", version,
                           ", but this refurbish_tf reads version ",
                           kVersionNow,
                           ". Use the refurbish_tf that saved it.");
  }
  absl::Status all_read;
  ForEachField(position, [&](const char* key, auto* value) {
    using Value = std::decay_t<decltype(*value)>;
    if constexpr (std::is_integral_v<Value>) {
      int64_t number = *value;
      all_read.Update(reader.ReadScalar(key, &number));
      *value = number;
    } else if constexpr (std::is_same_v<Value, double>) {
      all_read.Update(reader.ReadScalar(key, value));
    } else {
      all_read.Update(reader.Read(key, value));
    }
  });
  TF_RETURN_IF_ERROR(all_read);
  if (!position->joined) return absl::OkStatus();
  return DamagedCheckpoint("refurbish",
                           "it is said to be of all workers, but is of one");
}

}  // namespace refurbish_tf
