// Gives sources access to the file systems that TensorFlow knows, such as
// gs://, hdfs:// and ram://.
#pragma once

#include <string>

#include "refurbish_tf/cc/sources/file_access.h"

namespace refurbish_tf {

// The access to the file system of `path`. It is never destroyed.
FileAccess* AccessTo(const std::string& path);

}  // namespace refurbish_tf
