// The file systems that TensorFlow knows, as gs://, hdfs:// and ram://, as sources
// read them.
#ifndef REFURBISH_TF_CC_KERNELS_SOURCES_TENSORFLOW_FILES_H_
#define REFURBISH_TF_CC_KERNELS_SOURCES_TENSORFLOW_FILES_H_

#include <string>

#include "refurbish_tf/cc/sources/file_access.h"

namespace refurbish_tf {

// Of the file system that `path` is on. What it returns lives for ever.
FileAccess* AccessTo(const std::string& path);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_SOURCES_TENSORFLOW_FILES_H_
