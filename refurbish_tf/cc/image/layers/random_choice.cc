// Applies one of several chains of other layers.
#include <algorithm>
#include <vector>

#include "refurbish_tf/cc/image/layer_of_chains.h"

namespace refurbish_tf {
namespace {

class RandomChoice : public LayerOfChains {
 public:
  explicit RandomChoice(Arguments& arguments)
      : RandomChoice(arguments.Numbers("ends"), arguments) {}

  // Which chain, and its draws; then zeros.
  int num_draws() const override { return 1 + most_draws_; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    std::fill(draws, draws + num_draws(), 0);
    draws[0] = seed.Fraction(0);
    ChosenBy(draws).Draw(seed, draws + 1);
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i == 0) return Layer::EndOfDraw(i, draws);
    const LayerChain& chosen = ChosenBy(draws);
    return i > chosen.num_draws() ? 1 : chosen.EndOfDraw(i - 1, draws + 1);
  }
  RowChange row_change() const override {
    RowChange most = RowChange::kKept;
    for (size_t k = 0; k < chains().size(); ++k) {
      const bool is_ever_chosen = ends_[k] > (k == 0 ? 0 : ends_[k - 1]);
      if (is_ever_chosen) most = std::max(most, chains()[k].row_change());
    }
    return most;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return ChosenBy(draws).ChangesNothing(draws + 1);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    ChosenBy(draws).Apply(draws + 1, canvas);
  }
  void DrawFrom(Canvas* boxes, int32_t* draws) const override {
    ChosenBy(draws).DrawFrom(boxes, draws + 1);
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_ASSIGN_OR_RETURN(ImageSpec all, chains()[0].BehindWithin(image));
    for (size_t k = 1; k < chains().size(); ++k) {
      RTF_ASSIGN_OR_RETURN(const ImageSpec made,
                           chains()[k].BehindWithin(image));
      all.size_is_drawn |= made.size_is_drawn || !(made.size == all.size);
      all.size_is_new |= made.size_is_new || all.size_is_drawn;
      if (!(made.size == all.size)) all.size = {kUnknown, kUnknown};
    }
    return all;
  }
  absl::StatusOr<ImageSpec> Made(ImageSpec image,
                                 const int32_t* draws) const override {
    RTF_ASSIGN_OR_RETURN(const ImageSpec all, Behind(image));
    RTF_ASSIGN_OR_RETURN(ImageSpec made,
                         ChosenBy(draws).BehindWithin(image, draws + 1));
    made.size_is_drawn |= all.size_is_drawn;
    return made;
  }

 private:
  RandomChoice(const std::vector<double>& ends, Arguments& arguments)
      : LayerOfChains(ends.size(), /*keeps_size=*/false, arguments),
        ends_(ends) {
    if (!(ends[0] >= 0) || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() != 0x1p31) {
      arguments.Fail("ends must rise from 0 to 2^31");
    }
    for (const LayerChain& chain : chains()) {
      most_draws_ = std::max(most_draws_, chain.num_draws());
    }
  }

  // The first end above the draw belongs to the chosen chain.
  const LayerChain& ChosenBy(const int32_t* draws) const {
    return chains()[std::upper_bound(ends_.begin(), ends_.end(), draws[0]) -
                    ends_.begin()];
  }

  // The cumulative probabilities, in units of 2^-31.
  const std::vector<double> ends_;
  int most_draws_ = 0;
};

const LayerType kRandomChoice("random_choice", 1,
                              LayerType::MakeAs<RandomChoice>);

}  // namespace
}  // namespace refurbish_tf
