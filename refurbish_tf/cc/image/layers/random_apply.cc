// Applies a chain of other layers, or none of them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

// The text of layers in an argument: ",~" stands for a space. Layers in these
// have one more "~" for each level.
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

class RandomApply : public ChanceLayer {
 public:
  explicit RandomApply(Arguments& arguments) : ChanceLayer(arguments) {
    absl::StatusOr<LayerChain> chain =
        LayerChain::Parse({InnerText(arguments.Text("layers"))});
    if (!chain.ok()) {
      arguments.Fail(chain.status().message());
      return;
    }
    chain_ = std::make_unique<const LayerChain>(*std::move(chain));
    // Some layers take no bytes.
    for (const ValueType type : {ValueType::kUint8, ValueType::kFloat32}) {
      ImageSpec image;
      image.pixel.type = type;
      const absl::StatusOr<ImageSpec> made = chain_->Behind(image);
      if (made.ok() && Keeps(image, *made)) return;
    }
    arguments.Fail("its layers must keep the size and the dtype of an image");
  }

  int num_draws() const override { return 1 + chain_->num_draws(); }
  // What is not applied draws zeros.
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Fraction(0);
    std::fill(draws + 1, draws + num_draws(), 0);
    if (!ChangesNothing(draws)) chain_->Draw(seed, draws + 1);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i == 0) return Layer::EndOfDraw(i, draws);
    const auto& links = chain_->links();
    auto link = links.rbegin();
    while (link->first_draw >= i) ++link;
    return link->layer->EndOfDraw(i - 1 - link->first_draw,
                                  draws + 1 + link->first_draw);
  }
  bool moves_pixels() const override {
    for (const LayerChain::Link& link : chain_->links()) {
      if (link.layer->moves_pixels()) return true;
    }
    return false;
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    for (const LayerChain::Link& link : chain_->links()) {
      absl::StatusOr<ImageSpec> made = link.layer->Behind(image);
      if (!made.ok()) return Refusal::Of(made.status()).Within(link.name);
      image = *made;
    }
    return image;
  }

 private:
  static bool Keeps(const ImageSpec& image, const ImageSpec& made) {
    return made.size == image.size && !made.size_is_new &&
           made.pixel.type == image.pixel.type &&
           made.is_normalized == image.is_normalized;
  }

  void Change(const int32_t* draws, Canvas* canvas) const override {
    chain_->Apply(draws + 1, canvas);
  }

  // Null if the arguments are wrong.
  std::unique_ptr<const LayerChain> chain_;
};

const LayerType kRandomApply("random_apply", 1, LayerType::MakeAs<RandomApply>);

}  // namespace
}  // namespace refurbish_tf
