#include "refurbish_tf/cc/base/printable.h"

#include <cstddef>
#include <cstdint>

namespace refurbish_tf {
namespace {

// The size of the UTF-8 character at the start of `text`; 0 if it is not valid.
size_t CharacterSize(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xc2   ? 0
                      : first < 0xe0 ? 2
                      : first < 0xf0 ? 3
                      : first < 0xf5 ? 4
                                     : 0;
  if (size == 0 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Rejects overlong forms, surrogates, and code points above U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return size;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    if (size == 0) {
      absl::StrAppend(
          &printable, "\\x",
          absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    } else {
      printable.append(text.data(), size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return printable;
}

absl::Status Printable(const absl::Status& status) {
  const std::string message = Printable(status.message());
  if (message == status.message()) return status;
  absl::Status printable(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    printable.SetPayload(url, payload);
  });
  return printable;
}

}  // namespace refurbish_tf
