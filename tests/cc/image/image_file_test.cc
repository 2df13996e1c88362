// The headers of image files, including forged and damaged ones, and how the orientation in them turns photographs.
#include "refurbish_tf/cc/image/image_file.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/orientation.h"

namespace refurbish_tf {
namespace {

// The text of a literal without its terminating zero, but with zeros within it.
template <size_t n>
std::string Literal(const char (&text)[n]) {
  return std::string(text, n - 1);
}

std::string InOrder(bool little, uint64_t value, int bytes) {
  std::string made;
  for (int i = 0; i < bytes; ++i) made += static_cast<char>(value >> 8 * (little ? i : bytes - 1 - i));
  return made;
}
std::string LittleEndian(uint64_t value, int bytes) { return InOrder(true, value, bytes); }
std::string BigEndian(uint64_t value, int bytes) { return InOrder(false, value, bytes); }

// The parts of an EXIF block, for a test to damage.
struct ExifBlock {
  bool little = true;
  uint64_t offset = 8, entries = 3, tag = 0x112, type = 3, count = 1, value = 6;

  std::string Made() const {
    const auto entry = [this](uint64_t tag, uint64_t type, uint64_t count, const std::string& value) {
      return InOrder(little, tag, 2) + InOrder(little, type, 2) + InOrder(little, count, 4) + value +
             std::string(4 - value.size(), '\0');
    };
    const int bytes = type == 1 ? 1 : type == 3 ? 2 : 4;
    return (little ? Literal("II*\0") : Literal("MM\0*")) + InOrder(little, offset, 4) + InOrder(little, entries, 2) +
           entry(0x10f, 2, 4, "abc") + entry(tag, type, count, InOrder(little, value, bytes)) +
           entry(0x131, 2, 4, "def") + std::string(4, '\0');
  }
};
// The offset of the orientation's value in the block.
constexpr size_t kBeforeOrientation = 8 + 2 + 12 + 8;

// A copy of exactly the same length, so that the sanitizer reports reads beyond it.
std::unique_ptr<char[]> ExactCopy(const std::string& bytes) {
  std::unique_ptr<char[]> copy(new char[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return copy;
}
int OrientationIn(const std::string& exif) { return ExifOrientation({ExactCopy(exif).get(), exif.size()}); }
ImageFile ReadCopy(const std::string& file) { return ReadImageFile({ExactCopy(file).get(), file.size()}); }

TEST(ExifOrientationTest, IsFoundForEachByteOrderAndType) {
  for (const bool little : {true, false}) {
    for (const uint64_t type : {1, 3, 4}) {
      for (uint64_t value = 1; value <= 8; ++value) {
        ExifBlock exif;
        exif.little = little, exif.type = type, exif.value = value;
        EXPECT_EQ(OrientationIn(exif.Made()), value);
        // The entries may begin anywhere in the block, and the block may be cut off after the orientation.
        exif.offset = 11;
        EXPECT_EQ(OrientationIn(exif.Made().insert(8, 3, '?')), value);
        exif.offset = 8;
        EXPECT_EQ(OrientationIn(exif.Made().substr(0, kBeforeOrientation + 4)), value);
      }
    }
  }
}

TEST(ExifOrientationTest, IsNormalForDamagedBlocks) {
  for (const bool little : {true, false}) {
    std::vector<std::function<void(ExifBlock&)>> damages = {
        [](ExifBlock& exif) { exif.entries = 0; }, [](ExifBlock& exif) { exif.entries = 1; },
        [](ExifBlock& exif) { exif.tag = 0x113; }, [](ExifBlock& exif) { exif.count = 0; },
        [](ExifBlock& exif) { exif.count = 2; },   [](ExifBlock& exif) { exif.count = 0xffffffff; }};
    for (const uint64_t value : {0, 9, 0x106, 0xffff}) damages.push_back([=](ExifBlock& exif) { exif.value = value; });
    for (const uint64_t type : {0, 2, 5, 7, 0x103}) damages.push_back([=](ExifBlock& exif) { exif.type = type; });
    for (const uint64_t offset : {0u, 7u, 9u, 45u, 60u, 0x7fffffffu, 0xfffffffeu, 0xffffffffu}) {
      damages.push_back([=](ExifBlock& exif) { exif.offset = offset; });
    }
    for (size_t i = 0; i < damages.size(); ++i) {
      ExifBlock exif;
      exif.little = little;
      damages[i](exif);
      EXPECT_EQ(OrientationIn(exif.Made()), 1) << i;
      // The largest possible number of entries.
      if (exif.entries == 3) exif.entries = 0xffff;
      EXPECT_EQ(OrientationIn(exif.Made()), 1) << i;
    }
    ExifBlock whole;
    whole.little = little;
    for (size_t length = 0; length < kBeforeOrientation + 4; ++length) {
      EXPECT_EQ(OrientationIn(whole.Made().substr(0, length)), 1) << length;
    }
    for (size_t at = 0; at < 4; ++at) {
      std::string header = whole.Made();
      header[at] = static_cast<char>(header[at] ^ 1);
      EXPECT_EQ(OrientationIn(header), 1) << at;
    }
  }
}

// Changes some bytes, and in half of the cases cuts off the end.
std::string SpoiledFile(std::string bytes, size_t first, std::mt19937_64& random) {
  const char extremes[] = {'\0', '\x7f', '\x80', '\xff'};
  for (size_t count = 1 + random() % 5; count > 0; --count) {
    char& byte = bytes[first + random() % (bytes.size() - first)];
    byte = random() % 2 ? extremes[random() % 4] : static_cast<char>(random());
  }
  if (random() % 2) bytes.resize(first + random() % (bytes.size() - first + 1));
  return bytes;
}

std::string PngChunk(const std::string& name, const std::string& data) {
  return BigEndian(data.size(), 4) + name + data + std::string(4, '\0');
}
std::string Ihdr(uint64_t height, uint64_t width, int bits = 8) {
  return PngChunk("IHDR", BigEndian(width, 4) + BigEndian(height, 4) + static_cast<char>(bits) + Literal("\2\0\0\0"));
}
const std::string kPngStart = "\x89PNG\r\n\x1a\n";

std::string GifFrame(uint64_t height, uint64_t width) {
  // The frame has its own table of two colors, and blocks of one and three bytes.
  return "," + LittleEndian(0, 4) + LittleEndian(width, 2) + LittleEndian(height, 2) +
         Literal(
             "\x80"
             "abcdef"
             "\2"
             "\1,\3,!;\0");
}
std::string GifStart(uint64_t height, uint64_t width) {
  return "GIF89a" + LittleEndian(width, 2) + LittleEndian(height, 2) + Literal("\x81\0\0") + std::string(12, ',') +
         Literal(
             "!\xf9\4\0\0\0\0\0"
             "!\xfe\2,,\1;\0");
}

std::string WebpChunk(const std::string& name, const std::string& data) {
  return name + LittleEndian(data.size(), 4) + data + std::string(data.size() % 2, '\0');
}
std::string WebpFile(const std::string& chunks) {
  return "RIFF" + LittleEndian(4 + chunks.size(), 4) + "WEBP" + chunks;
}
std::string LossyFrame(uint64_t height, uint64_t width) {
  return Literal("\x10\2\0\x9d\1\x2a") + LittleEndian(width | 0x4000, 2) + LittleEndian(height | 0x8000, 2) + "abc";
}
std::string LosslessFrame(uint64_t height, uint64_t width) {
  return "/" + LittleEndian((width - 1) | (height - 1) << 14 | 1 << 28, 4) + "ab";
}
std::string WebpCanvas(uint64_t height, uint64_t width) {
  return Literal("\x08\0\0\0") + LittleEndian(width - 1, 3) + LittleEndian(height - 1, 3);
}

std::string JpegSegment(char marker, const std::string& data) {
  return std::string{'\xff', marker} + BigEndian(data.size() + 2, 2) + data;
}
const std::string kExifName = Literal("Exif\0\0");
const std::string kJpegFrame = JpegSegment('\xc0', "\x08" + BigEndian(300, 2) + BigEndian(400, 2) +
                                                       Literal("\3"
                                                               "\1\x11\0"
                                                               "\2\x11\0"
                                                               "\3\x11\0"));

std::string BmpStart(int32_t height, int32_t width) {
  return "BM" + std::string(12, '\0') + LittleEndian(40, 4) + LittleEndian(static_cast<uint32_t>(width), 4) +
         LittleEndian(static_cast<uint32_t>(height), 4) + std::string(28, '\0');
}

struct ClaimingFile {
  std::string file, format;
  int orientation;
};

// Files of 300 x 400 pixels.
std::vector<ClaimingFile> WholeFiles() {
  const std::string exif = ExifBlock().Made();
  return {
      {"\xff\xd8" + JpegSegment('\xe0', "JFIF") + JpegSegment('\xe1', "http://ns.adobe.com/xap/") +
           JpegSegment('\xe1', kExifName + exif) + JpegSegment('\xe1', kExifName) + kJpegFrame,
       "JPEG", 6},
      {"\xff\xd8" + JpegSegment('\xe2', kExifName + exif) + kJpegFrame, "JPEG", 1},
      {kPngStart + Ihdr(300, 400) + PngChunk("IDAT", "abc") + PngChunk("eXIf", exif) + PngChunk("IEND", ""), "PNG", 6},
      {kPngStart + Ihdr(300, 400) + PngChunk("eXIf", kExifName + exif) + PngChunk("IEND", ""), "PNG", 6},
      {kPngStart + Ihdr(300, 400) + PngChunk("IEND", "") + PngChunk("eXIf", exif), "PNG", 1},
      // libpng skips a chunk before the header, and refuses a second header.
      {kPngStart + PngChunk("aaAa", std::string(13, '\0')) + Ihdr(300, 400) + Ihdr(1, 1) + PngChunk("IEND", ""), "PNG",
       1},
      {GifStart(300, 400) + GifFrame(2, 3) + ";", "GIF", 1},
      {GifStart(2, 3) + GifFrame(300, 400) + GifStart(9, 9).substr(25) + GifFrame(500, 600) + ";", "GIF", 1},
      {BmpStart(300, 400), "BMP", 1},
      {BmpStart(-300, 400), "BMP", 1},
      {WebpFile(WebpChunk("VP8 ", LossyFrame(300, 400))), "WebP", 1},
      {WebpFile(WebpChunk("VP8L", LosslessFrame(300, 400))), "WebP", 1},
      {WebpFile(WebpChunk("VP8X", WebpCanvas(300, 400)) + WebpChunk("odd ", "abc") +
                WebpChunk("VP8 ", LossyFrame(300, 400)) + WebpChunk("EXIF", exif)),
       "WebP", 6},
      {WebpFile(WebpChunk("VP8X", WebpCanvas(300, 400)) + WebpChunk("EXIF", kExifName + exif)), "WebP", 6},
      // libwebp reads only the first chunk, and ignores its length.
      {WebpFile(WebpChunk("VP8 ", LossyFrame(300, 400)) + WebpChunk("VP8X", WebpCanvas(1, 1))), "WebP", 1},
      {WebpFile("VP8 " + LittleEndian(0, 4) + LossyFrame(300, 400)), "WebP", 1},
      {WebpFile("VP8L" + LittleEndian(0xffffffff, 4) + LosslessFrame(300, 400)), "WebP", 1},
  };
}

TEST(ReadImageFileTest, ReadsFormatSizeDepthAndOrientation) {
  for (const ClaimingFile& whole : WholeFiles()) {
    const ImageFile read = ReadCopy(whole.file);
    EXPECT_EQ(read.format, whole.format);
    EXPECT_EQ(read.size.height, 300) << whole.file;
    EXPECT_EQ(read.size.width, 400) << whole.file;
    EXPECT_EQ(read.components, whole.format == "JPEG" ? 3 : 0);
    EXPECT_EQ(read.bits, 8);
    EXPECT_EQ(read.orientation, whole.orientation) << whole.file;
  }
  EXPECT_EQ(ReadCopy(kPngStart + Ihdr(300, 400, 16)).bits, 16);
  EXPECT_EQ(ReadCopy(kPngStart + PngChunk("aaAa", "") + Ihdr(300, 400, 16)).bits, 16);
  EXPECT_EQ(ReadCopy(kPngStart + Ihdr(300, 400, 1)).bits, 8);
}

TEST(ReadImageFileTest, ReadsTheLargestPossibleSizes) {
  EXPECT_EQ(ReadCopy(kPngStart + Ihdr(0xffffffff, 0xfffffffe)).size.height, 0xffffffff);
  EXPECT_EQ(ReadCopy(kPngStart + Ihdr(0xffffffff, 0xfffffffe)).size.width, 0xfffffffe);
  EXPECT_EQ(ReadCopy(GifStart(65535, 65535)).size.height, 65535);
  EXPECT_EQ(ReadCopy(BmpStart(INT32_MIN, INT32_MAX)).size.height, int64_t{1} << 31);
  EXPECT_EQ(ReadCopy(WebpFile(WebpChunk("VP8 ", LossyFrame(16383, 16383)))).size.height, 16383);
  EXPECT_EQ(ReadCopy(WebpFile(WebpChunk("VP8L", LosslessFrame(16384, 16384)))).size.width, 16384);
  EXPECT_EQ(ReadCopy(WebpFile(WebpChunk("VP8X", WebpCanvas(1 << 24, 1 << 24)))).size.height, 1 << 24);
}

TEST(ReadImageFileTest, FindsTheEndOfTheFirstGifFrame) {
  const std::string first = GifStart(3, 4) + GifFrame(3, 4);
  EXPECT_EQ(ReadCopy(first).end, first.size());
  EXPECT_EQ(ReadCopy(first + ";").end, first.size());
  EXPECT_EQ(ReadCopy(first + GifFrame(3, 4) + ";").end, first.size());
  for (size_t length = 6; length < first.size(); ++length) {
    EXPECT_LE(ReadCopy(first.substr(0, length)).end, length);
  }
}

TEST(ReadImageFileTest, ReportsNoFormatForFilesThatAreNotImages) {
  for (const std::string& file :
       {std::string(), Literal("\xff\xd8"), Literal("\x89PNG\r\n\x1a"), Literal("GIF"), Literal("B"),
        std::string("RIFF"),
        // libwebp would skip the first twelve bytes of these files, and decode the rest if it is an image.
        WebpFile(LossyFrame(300, 400)), WebpFile(LosslessFrame(300, 400)), WebpFile("JUNK"), WebpFile("VP8a"),
        WebpFile("VP8"), "RIFX" + std::string(40, '\0')}) {
    EXPECT_EQ(ReadCopy(file).format, "") << file;
    EXPECT_EQ(ReadCopy(file).size.height, 0);
  }
}

TEST(ReadImageFileTest, ReadsTruncatedFilesSafely) {
  for (const ClaimingFile& whole : WholeFiles()) {
    for (size_t length = 0; length < whole.file.size(); ++length) {
      const ImageFile read = ReadCopy(whole.file.substr(0, length));
      EXPECT_TRUE(read.format.empty() || read.format == whole.format);
      EXPECT_TRUE(read.orientation == 1 || read.orientation == whole.orientation);
    }
  }
}

TEST(ReadImageFileTest, ReadsDamagedFilesSafely) {
  std::mt19937_64 random(3);
  for (const ClaimingFile& whole : WholeFiles()) {
    for (int round = 0; round < 2000; ++round) {
      const ImageFile read = ReadCopy(SpoiledFile(whole.file, 2, random));
      EXPECT_TRUE(read.orientation >= 1 && read.orientation <= 8);
      EXPECT_TRUE(read.size.height >= 0 && read.size.width >= 0);
    }
  }
}

TEST(ReadImageFileTest, TerminatesForAnyChunkLength) {
  // Lengths of chunks. Some chunks would end before they begin if positions had 32 bits.
  for (const uint64_t length : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xfffffff4u, 0xfffffff8u, 0xffffffffu}) {
    const std::string exif = PngChunk("eXIf", ExifBlock().Made());
    EXPECT_EQ(ReadCopy(kPngStart + Ihdr(3, 4) + BigEndian(length, 4) + "IDAT" + exif).orientation, 1) << length;
    EXPECT_EQ(ReadCopy(kPngStart + Ihdr(3, 4) + BigEndian(length, 4) + "eXIf" + ExifBlock().Made()).orientation,
              length > 1 ? 6 : 1);
    const std::string webp =
        WebpFile(WebpChunk("VP8X", WebpCanvas(3, 4)) + "EXIF" + LittleEndian(length, 4) + ExifBlock().Made());
    EXPECT_EQ(ReadCopy(webp).orientation, length > 1 ? 6 : 1);
    EXPECT_EQ(ReadCopy(WebpFile("VP8X" + LittleEndian(length, 4))).orientation, 1);
  }
  // Many blocks, chunks and segments of the smallest size, none of which ends the file.
  std::string gif = GifStart(3, 4), png = kPngStart + Ihdr(3, 4), webp = WebpFile(WebpChunk("VP8X", WebpCanvas(3, 4))),
              jpeg = "\xff\xd8";
  for (int i = 0; i < 50'000; ++i) {
    gif += Literal("!\xfe\0");
    png += PngChunk("aaAa", "");
    webp += WebpChunk("aaaa", "");
    jpeg += JpegSegment('\xe1', "");
  }
  for (const std::string& file : {gif, png, webp}) EXPECT_EQ(ReadCopy(file).size.height, 3);
  EXPECT_EQ(ReadCopy(jpeg + kJpegFrame).size.height, 300);
  EXPECT_EQ(ReadCopy(gif + "!" + std::string(1000, '\xff')).size.height, 3);
}

TEST(OrientationTest, FollowsTheExifDefinition) {
  const ImageSize stored = {3, 5};
  // Pixels of two bytes, in rows with space for six pixels.
  const int64_t stride = 2 * 6;
  std::vector<uint8_t> from(stored.height * stride);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i);
  for (int number = 1; number <= 8; ++number) {
    const Orientation orientation(number);
    EXPECT_EQ(orientation.changes_nothing(), number == 1);
    const ImageSize standing = orientation.Turned(stored);
    ASSERT_EQ(standing.height, number < 5 ? 3 : 5);
    std::vector<uint8_t> to(3 * 5 * 2);
    orientation.Turn(from.data(), stored, stride, 2, to.data());
    for (int64_t y = 0; y < standing.height; ++y) {
      for (int64_t x = 0; x < standing.width; ++x) {
        // EXIF defines an orientation by the sides on which the stored image's first row and column are seen.
        const std::pair<int64_t, int64_t> places[] = {{y, x}, {y, 4 - x}, {2 - y, 4 - x}, {2 - y, x},
                                                      {x, y}, {2 - x, y}, {2 - x, 4 - y}, {x, 4 - y}};
        const auto& [row, column] = places[number - 1];
        for (int64_t byte = 0; byte < 2; ++byte) {
          EXPECT_EQ(to[(y * standing.width + x) * 2 + byte], from[row * stride + column * 2 + byte]) << number;
        }
      }
    }
  }
}

TEST(OrientationTest, TurnsABoxLikeTheWholeImage) {
  const ImageSize stored = {4, 7};
  std::vector<uint8_t> from(4 * 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i);
  for (int number = 1; number <= 8; ++number) {
    const Orientation orientation(number);
    const ImageSize standing = orientation.Turned(stored);
    std::vector<uint8_t> whole(4 * 7);
    orientation.Turn(from.data(), stored, 7, 1, whole.data());
    for (const Box& box :
         {Box{0, 0, 1, 1}, Box{1, 2, 3, 2}, Box{0, 1, 2, 3}, Box{0, 0, standing.height, standing.width}}) {
      const Box part = orientation.StoredBox(box, stored);
      std::vector<uint8_t> turned(box.height * box.width);
      orientation.Turn(&from[part.y * 7 + part.x], {part.height, part.width}, 7, 1, turned.data());
      for (int64_t y = 0; y < box.height; ++y) {
        for (int64_t x = 0; x < box.width; ++x) {
          EXPECT_EQ(turned[y * box.width + x], whole[(box.y + y) * standing.width + box.x + x]) << number;
        }
      }
      // `StandingWindow` is the inverse of `StoredBox`.
      const ResizeWindow window =
          orientation.StandingWindow({double(part.y), double(part.x), double(part.height), double(part.width)}, stored);
      EXPECT_EQ(window.y, box.y) << number;
      EXPECT_EQ(window.x, box.x) << number;
      EXPECT_EQ(window.height, box.height) << number;
      EXPECT_EQ(window.width, box.width) << number;
    }
  }
}

}  // namespace
}  // namespace refurbish_tf
