// The position of a refurbish stage in the checkpoint of an iterator.
#pragma once

#include <string>
#include <type_traits>

#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/refurbish/epoch_position.h"

namespace refurbish_tf {

// Raise this if an older package could not read what this one saves.
inline constexpr int64_t kPositionVersion = 6;
inline constexpr char kSavedVersion[] = "version";

// The key under which an iterator saves the name of its stage.
inline constexpr char kSavedStage[] = "stage";

inline absl::Status WritePosition(IteratorStateWriter* writer,
                                  const std::string& prefix,
                                  const std::string& stage,
                                  EpochPosition position) {
  absl::Status written =
      writer->WriteScalar(prefix, kSavedVersion, kPositionVersion);
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

// Fails if the position is missing, or was saved in another version.
inline absl::Status ReadPosition(const CheckpointReader& reader,
                                 EpochPosition* position) {
  int64_t version = 0;
  TF_RETURN_IF_ERROR(reader.ReadScalar(kSavedVersion, &version));
  if (version != kPositionVersion) {
    return InvalidArgument("The checkpoint of refurbish has version ", version,
                           ", but this refurbish_tf reads version ",
                           kPositionVersion,
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
                           "it claims to be of all workers, but is of one");
}

}  // namespace refurbish_tf
