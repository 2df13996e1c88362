#include "refurbish_tf/cc/image/layer_chain.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace refurbish_tf {
namespace {

// Returns one text per layer. It begins at the name, the only word without `=`.
std::vector<std::string> LayersOf(const std::vector<std::string>& pieces) {
  std::vector<std::string> layers;
  for (const std::string& piece : pieces) {
    for (absl::string_view word :
         absl::StrSplit(piece, ' ', absl::SkipEmpty())) {
      const bool continues_word = word.front() == ',';
      const bool has_value =
          continues_word || word.find('=') != absl::string_view::npos;
      if (!has_value || layers.empty()) {
        layers.emplace_back(word);
      } else {
        absl::StrAppend(&layers.back(), continues_word ? "" : " ", word);
      }
    }
  }
  return layers;
}

// Decodes nested layers: ",~" encodes a space. Each level adds one "~".
std::string InnerText(absl::string_view text) {
  std::string inner;
  while (!text.empty()) {
    if (!absl::ConsumePrefix(&text, ",~")) {
      inner += text[0];
      text.remove_prefix(1);
    } else if (absl::StartsWith(text, "~")) {
      inner += ',';
      while (absl::ConsumePrefix(&text, "~")) inner += '~';
    } else {
      inner += ' ';
    }
  }
  return inner;
}

absl::Status RefusedImage(const absl::Status& status) {
  const auto [whose, why] = Refusal::Of(status);
  return InvalidArgument("image of ", absl::StripSuffix(whose, " in "),
                         " must ", why, ".");
}

}  // namespace

absl::StatusOr<LayerChain> LayerChain::Parse(
    const std::vector<std::string>& pieces) {
  const std::vector<std::string> texts = LayersOf(pieces);
  if (texts.empty() || texts.size() > kMaxLayers) {
    return InvalidArgument("There must be 1 to ", kMaxLayers, " layers, got ",
                           texts.size(), ".");
  }
  LayerChain chain;
  for (const std::string& text : texts) {
    Arguments arguments(text);
    Link link;
    link.name = std::string(arguments.name());
    link.position = arguments.Integer("position", -1, kMaxSide);
    const auto known = KnownLayers().find(link.name);
    if (known != KnownLayers().end()) {
      link.layer = known->second(arguments);
      const Layer* const before =
          chain.links_.empty() ? nullptr : chain.links_.back().layer.get();
      const absl::Status follows = link.layer->MayFollow(before);
      if (!follows.ok()) arguments.Fail(follows.message());
    } else {
      arguments.Fail("unknown name");
    }
    RTF_RETURN_IF_ERROR(arguments.Check());
    link.first_draw = chain.num_draws_;
    chain.num_draws_ += link.layer->num_draws();
    chain.links_.push_back(std::move(link));
  }
  return chain;
}

LayerChain LayerChain::UpToLastPolicy() const {
  LayerChain made = *this;
  while (!made.links_.empty() && !made.links_.back().layer->is_policy()) {
    made.num_draws_ = made.links_.back().first_draw;
    made.links_.pop_back();
  }
  return made;
}

absl::Status LayerChain::Check(const ImageSpec& image) {
  for (const int64_t side : {image.size.height, image.size.width}) {
    if (side != kUnknown && (side < 1 || side > kMaxSide)) {
      return InvalidArgument("have sides of 1 to ", kMaxSide, " pixels, got ",
                             image.size);
    }
  }
  const int64_t channels = image.pixel.channels;
  if (channels != kUnknown && (channels < 1 || channels > kMaxChannels)) {
    return InvalidArgument("have 1 to ", kMaxChannels, " channels, got ",
                           channels);
  }
  // An unknown side is -1, so the product is within the limit.
  if (static_cast<double>(image.size.height) *
          static_cast<double>(image.size.width) <=
      kMaxPixels) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "have at most 2^48 pixels before and after each layer, got ", image.size,
      ". Crop or resize it first");
}

LayerChain LayerChain::Of(absl::string_view key, bool keeps_size,
                          Arguments* arguments) {
  absl::StatusOr<LayerChain> chain = Parse({InnerText(arguments->Text(key))});
  if (!chain.ok()) {
    arguments->Fail(chain.status().message());
    return {};
  }
  // Float32 is also tried, because some layers do not accept uint8.
  for (const ValueType type : {ValueType::kUint8, ValueType::kFloat32}) {
    ImageSpec image;
    image.pixel.type = type;
    const absl::StatusOr<ImageSpec> made = chain->Behind(image);
    if (made.ok() && made->pixel.type == type && !made->is_normalized &&
        (!keeps_size || (made->size == image.size && !made->size_is_new))) {
      return *std::move(chain);
    }
  }
  arguments->Fail("its layers must keep the ",
                  keeps_size ? "size and the " : "", "dtype of an image");
  return {};
}

absl::StatusOr<ImageSpec> LayerChain::Behind(const ImageSpec& image,
                                             const int32_t* draws) const {
  absl::StatusOr<ImageSpec> made = image;
  if (const absl::Status status = Check(image); !status.ok()) {
    made = Refusal::Of(status).Within(links_[0].name);
  } else {
    made = BehindWithin(image, draws);
  }
  if (made.ok()) return made;
  return RefusedImage(made.status());
}

absl::StatusOr<ImageSpec> LayerChain::BehindWithin(ImageSpec image,
                                                   const int32_t* draws) const {
  for (const Link& link : links_) {
    absl::StatusOr<ImageSpec> made =
        draws == nullptr ? link.layer->Behind(image)
                         : link.layer->Made(image, draws + link.first_draw);
    absl::Status status = made.status();
    if (status.ok()) status = Check(*made);
    if (!status.ok()) return Refusal::Of(status).Within(link.name);
    image = *made;
  }
  return image;
}

absl::StatusOr<ImageSpec> LayerChain::BehindFollower(
    ImageSpec image, Pixel pixel, int64_t times, const int32_t* draws) const {
  ImageSpec made = {image.size, pixel};
  const auto larger = [times](int64_t side) {
    return side == kUnknown ? kUnknown : side * times;
  };
  const auto enlarge = [&](const Link& link) -> absl::Status {
    made.size = {larger(image.size.height), larger(image.size.width)};
    const int64_t most = times == 1 ? kMaxSide : ResizingLayer::kMaxSide;
    absl::Status status = Check(made);
    if (std::max(made.size.height, made.size.width) > most) {
      status = InvalidArgument("have sides of at most ", most, " pixels, got ",
                               made.size, ". Crop it first");
    }
    if (status.ok()) return status;
    return RefusedImage(Refusal::Of(status).Within(link.name));
  };
  RTF_RETURN_IF_ERROR(enlarge(links_[0]));
  for (const Link& link : links_) {
    RTF_ASSIGN_OR_RETURN(
        image, draws == nullptr
                   ? link.layer->Behind(image)
                   : link.layer->Made(image, draws + link.first_draw));
    const absl::StatusOr<ImageSpec> follower = link.layer->Behind(made);
    if (!follower.ok()) {
      return RefusedImage(Refusal::Of(follower.status()).Within(link.name));
    }
    made = *follower;
    RTF_RETURN_IF_ERROR(enlarge(link));
  }
  return made;
}

void LayerChain::Draw(const ImageSeed& seed, int32_t* draws) const {
  const int32_t* before = nullptr;
  for (const Link& link : links_) {
    int32_t* const own = draws + link.first_draw;
    link.layer->Draw(link.position < 0 ? seed : seed.SeedAt(link.position),
                     before, own);
    before = own;
  }
}

absl::Status LayerChain::CheckDraws(const int32_t* draws) const {
  for (const Link& link : links_) {
    const int32_t* const own = draws + link.first_draw;
    const int num_draws = link.layer->num_draws();
    for (int i = 0; i < num_draws; ++i) {
      const int64_t end = link.layer->EndOfDraw(i, own);
      if (own[i] < 0 || own[i] >= end) {
        return InvalidArgument(
            "A draw must be from 0 to ", end - 1, ", got ", own[i],
            ". Draws must come from the same layers as the pixels.");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace refurbish_tf
