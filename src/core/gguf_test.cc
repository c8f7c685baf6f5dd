#include "core/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Builds a file piece by piece.
class Bytes {
 public:
  template <typename T>
  Bytes& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& Text(const std::string& text) {
    Put<uint64_t>(text.size());
    text_ += text;
    return *this;
  }
  Bytes& Head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    text_ += "GGUF";
    return Put(version).Put(tensors).Put(keys);
  }
  Bytes& Tensor(const std::string& name, std::vector<uint64_t> sizes, uint32_t type,
                uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(sizes.size()));
    for (uint64_t size : sizes) Put(size);
    return Put(type).Put(offset);
  }
  // Aligns the header and appends `bytes` of data.
  Bytes& Data(size_t bytes) {
    text_.resize((text_.size() + 31) / 32 * 32 + bytes);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

GgufHeader Parse(const std::string& text) {
  return ParseGgufHeader({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "m.gguf");
}
std::string MessageOf(const Bytes& bytes) {
  return ErrorOf([&] { Parse(bytes.text()); });
}

Bytes Valid() {
  Bytes b;
  b.Head(2, 4);
  b.Text("a").Put<uint32_t>(4).Put<uint32_t>(7);
  b.Text("eps").Put<uint32_t>(6).Put(1e-6f);
  b.Text("list").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(2).Text("x").Text("yz");
  b.Text("ok").Put<uint32_t>(7).Put<uint8_t>(1);
  b.Tensor("w", {64, 3}, kGgmlQ4_0, 0).Tensor("v", {4}, kGgmlF32, 128);
  return b.Data(128 + 16);
}

TEST(ParseGgufHeader, GivesMetadataAndTensors) {
  const GgufHeader header = Parse(Valid().text());
  EXPECT_EQ(std::get<int64_t>(header.metadata.at("a")), 7);
  EXPECT_EQ(std::get<double>(header.metadata.at("eps")), 1e-6);
  EXPECT_EQ(std::get<bool>(header.metadata.at("ok")), true);
  EXPECT_THAT(std::get<std::vector<std::string>>(header.metadata.at("list")),
              ElementsAre("x", "yz"));
  const GgufTensor& w = header.tensors.at("w");
  EXPECT_THAT(w.shape, ElementsAre(3, 64));
  EXPECT_EQ(w.type->name, "Q4_0");
  EXPECT_EQ(w.end - w.begin, 3 * 2 * 18);
  EXPECT_EQ(w.begin % 32, 0);
  EXPECT_EQ(header.tensors.at("v").end, Valid().text().size());
}

TEST(ParseGgufHeader, RefusesEveryTruncation) {
  const std::string whole = Valid().text();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string message = ErrorOf([&] { Parse(whole.substr(0, size)); });
    EXPECT_THAT(message, HasSubstr("m.gguf: ")) << size;
    EXPECT_THAT(message, ::testing::AnyOf(HasSubstr("truncated"), HasSubstr("damaged"))) << size;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(ParseGgufHeader, SurvivesChangedBytes) {
  const std::string whole = Valid().text();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int value : {0, 1, 127, 255}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(value);
      try {
        for (const auto& [name, tensor] : Parse(changed).tensors) {
          EXPECT_LE(tensor.begin, tensor.end);
          EXPECT_LE(tensor.end, changed.size());
        }
      } catch (const Error&) {
      }
    }
  }
}

TEST(ParseGgufHeader, NamesTheDefect) {
  const auto head = [](uint64_t tensors, uint64_t keys) { return Bytes().Head(tensors, keys); };
  EXPECT_THAT(ErrorOf([] { Parse("JSON 0123456789012345678901234"); }),
              HasSubstr("this is not a GGUF file"));
  EXPECT_THAT(MessageOf(Bytes().Head(0, 0, 1)),
              HasSubstr("is GGUF version 1; want version 2 or 3"));
  EXPECT_THAT(MessageOf(Bytes().Head(0, 0, 3u << 24)), HasSubstr("is big-endian"));
  EXPECT_THAT(MessageOf(head(0, uint64_t{1} << 60)), HasSubstr("metadata keys, but has only"));
  EXPECT_THAT(MessageOf(head(uint64_t{1} << 60, 0)), HasSubstr("tensors, but has only"));
  EXPECT_THAT(MessageOf(head(0, 1).Text("k").Put<uint32_t>(99).Put<uint64_t>(0)),
              HasSubstr("the metadata key k has the unknown type 99"));
  EXPECT_THAT(MessageOf(head(0, 1).Text("k").Put<uint32_t>(8).Put(~uint64_t{0})),
              HasSubstr("the metadata key k has a length of"));
  EXPECT_THAT(MessageOf(head(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(4).Put(~uint64_t{0})),
              HasSubstr("claims 18446744073709551615 elements"));
  EXPECT_THAT(MessageOf(head(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(1)),
              HasSubstr("array of arrays"));
  EXPECT_THAT(MessageOf(head(0, 1).Text("general.alignment").Put<uint32_t>(4).Put<uint32_t>(48)),
              HasSubstr("not a power of two"));
  Bytes twice = head(0, 2);
  for (int i = 0; i < 2; ++i) twice.Text("k").Put<uint32_t>(7).Put<uint8_t>(0);
  EXPECT_THAT(MessageOf(twice), HasSubstr("the metadata key k appears twice"));
}

TEST(ParseGgufHeader, NamesTheTensor) {
  const auto one = [](std::vector<uint64_t> sizes, uint32_t type, uint64_t offset = 0) {
    return MessageOf(Bytes().Head(1, 0).Tensor("w", std::move(sizes), type, offset).Data(64));
  };
  EXPECT_THAT(one({}, kGgmlF32), HasSubstr("tensor \"w\" has 0 dimensions; want 1 to 4"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, kGgmlF32), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(one({0}, kGgmlF32), HasSubstr("has a dimension of 0 elements"));
  EXPECT_THAT(one({uint64_t{1} << 40, uint64_t{1} << 40}, kGgmlF32), HasSubstr("dimension of"));
  EXPECT_THAT(one({uint64_t{1} << 62}, kGgmlF32), HasSubstr("has 4611686018427387904 elements"));
  EXPECT_THAT(one({4}, 5), HasSubstr("has the unknown type 5"));
  EXPECT_THAT(one({33}, kGgmlQ8_0), HasSubstr("rows of 33 elements; Q8_0 needs a multiple of 32"));
  EXPECT_THAT(one({4}, kGgmlF32, 4), HasSubstr("at data byte 4, not a multiple of the alignment"));
  EXPECT_THAT(one({4}, kGgmlF32, 64), HasSubstr("but the file has 64 data bytes; it is truncated"));
  EXPECT_THAT(one({4}, kGgmlF32, ~uint64_t{31}), HasSubstr("truncated"));
  EXPECT_THAT(
      MessageOf(
          Bytes().Head(2, 0).Tensor("w", {4}, kGgmlF32, 0).Tensor("w", {4}, kGgmlF32, 32).Data(64)),
      HasSubstr("tensor \"w\" appears twice"));
  EXPECT_THAT(MessageOf(Bytes()
                            .Head(2, 0)
                            .Tensor("v", {16}, kGgmlF32, 0)
                            .Tensor("w", {4}, kGgmlF32, 32)
                            .Data(64)),
              HasSubstr("tensors \"v\" and \"w\" overlap"));
}

}  // namespace
}  // namespace switchyard
