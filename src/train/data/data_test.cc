#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <set>

#include "core/temporary_directory.h"
#include "core/testing.h"
#include "text/tokenizer/bpe_trainer.h"
#include "train/data/corpus.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NanSensitiveFloatEq;
using ::testing::Pointwise;

class DataTest : public ::testing::Test {
 protected:
  fs::path Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
    return dir_ / name;
  }
  std::string ReadError(const std::string& name, const std::string& text,
                        ErrorKind kind = ErrorKind::kInvalid) {
    return ErrorOf([&] { ReadDocuments({Write(name, text)}); }, kind);
  }
  void WriteChatTokenizer(const std::string& chat_template) {
    const std::vector<std::string> special{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    BpeTrainer trainer(ByteLevelPreTokenizer(kWordPattern));
    trainer.Add("user assistant hello hello there there");
    WriteTokenizer(dir_, trainer.Learn({.vocab_size = 290, .special_tokens = special}), special,
                   {.eos = "<|im_end|>", .chat_template = chat_template});
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(DataTest, FilesBecomeDocuments) {
  Write("b.jsonl",
        "{\"text\": \"one\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
  Write("a.txt", "plain\ntext\n");
  Write("c.py", "unread");
  const auto documents = ReadDocuments({dir_});
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[0].text, "plain\ntext\n");
  EXPECT_EQ(documents[1].text, "one");
  EXPECT_EQ(documents[2].messages[0]["content"], "x");
  EXPECT_EQ(documents[2].where, (dir_ / "b.jsonl").string() + ":3");
}

TEST_F(DataTest, ChatsMayHaveToolsCallsAndVariables) {
  const auto documents = ReadDocuments(
      {Write("a.jsonl",
             R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content":)"
             R"( null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}], "tools":)"
             R"( [{"function": {"name": "f"}}], "chat_template_kwargs": {"loud": true}})")});
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(documents[0].tools[0]["function"]["name"], "f");
  EXPECT_EQ(documents[0].template_kwargs["loud"], true);
  EXPECT_THAT(
      ReadError("x.jsonl", R"({"messages": [{"role": "user", "content": "x"}], "tools": 1})"),
      HasSubstr("x.jsonl:1: \"tools\" is not a list"));
  EXPECT_THAT(ReadError("x.jsonl", R"({"messages": [{"role": "user", "content": "x"}],)"
                                   R"( "chat_template_kwargs": []})"),
              HasSubstr("\"chat_template_kwargs\" is not an object"));
  EXPECT_THAT(ReadError("x.jsonl", R"({"messages": [{"role": "user", "content": null,)"
                                   R"( "tool_calls": [{}]}]})"),
              HasSubstr("message 0 has no string \"content\""));
  EXPECT_THAT(ReadError("x.jsonl", R"({"messages": [{"role": "assistant", "tool_calls": []}]})"),
              HasSubstr("message 0 has no string \"content\""));
}

TEST_F(DataTest, ErrorsNameFileAndLine) {
  EXPECT_THAT(ReadError("x.jsonl", "{\"text\": \"a\"}\n{\"text\": oops}\n"),
              HasSubstr("x.jsonl:2: not JSON"));
  EXPECT_THAT(ReadError("x.jsonl", "\n[1]\n"), HasSubstr("x.jsonl:2: want an object"));
  EXPECT_THAT(ReadError("x.jsonl", "{\"text\": 1}"),
              HasSubstr("x.jsonl:1: \"text\" is not a string"));
  EXPECT_THAT(ReadError("x.jsonl", "{\"text\": \"a\", \"messages\": []}"), HasSubstr("either"));
  EXPECT_THAT(ReadError("x.jsonl", "{\"messages\": [{\"role\": \"user\"}]}"),
              HasSubstr("x.jsonl:1: message 0 has no string \"content\""));
  EXPECT_THAT(ReadError("x.jsonl", "\n\n"), HasSubstr("x.jsonl: no document found"));
  EXPECT_THAT(ReadError("x.txt", " \n"), HasSubstr("x.txt: no text found"));
  EXPECT_THAT(ReadError("x.txt", "fine\nbad \xff\n"), HasSubstr("x.txt:2: not UTF-8"));
  EXPECT_THAT(ErrorOf([&] { ReadDocuments({dir_ / "none.txt"}); }, ErrorKind::kNotFound),
              HasSubstr("none.txt: cannot be read"));
  EXPECT_THAT(ErrorOf([] { ReadDocuments({}); }), HasSubstr("--data: no file"));
}

fs::path ParquetFile(const std::string& name) {
  return fs::path(SWITCHYARD_TEST_DATA) / "parquet" / name;
}

TEST_F(DataTest, ParquetGivesTheDocumentsOfTheSameJsonLines) {
  for (const std::string& name : std::vector<std::string>{"chats", "rollouts", "texts_plain"}) {
    const auto columns = ReadDocuments({ParquetFile(name + ".parquet")});
    const std::string lines = name == "texts_plain" ? "texts" : name;
    // Rows without a text are lines without a document.
    std::ifstream in(ParquetFile(lines + ".jsonl"));
    std::string kept;
    for (std::string line; std::getline(in, line);) kept += line == "{}" ? "\n" : line + "\n";
    const auto want = ReadDocuments({Write("a.jsonl", kept)});
    ASSERT_EQ(columns.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(columns[i].text, want[i].text) << name << " " << i;
      EXPECT_EQ(columns[i].messages, want[i].messages);
      EXPECT_EQ(columns[i].tools, want[i].tools);
      EXPECT_EQ(columns[i].template_kwargs, want[i].template_kwargs);
      ASSERT_EQ(columns[i].rollout.has_value(), want[i].rollout.has_value());
      if (!want[i].rollout) continue;
      EXPECT_EQ(columns[i].rollout->prompt, want[i].rollout->prompt);
      EXPECT_EQ(columns[i].rollout->output, want[i].rollout->output);
      EXPECT_THAT(columns[i].rollout->logprobs,
                  Pointwise(NanSensitiveFloatEq(), want[i].rollout->logprobs));
    }
  }
  EXPECT_EQ(ReadDocuments({ParquetFile("text_with_map.parquet")}).at(0).text, "a");
  fs::copy_file(ParquetFile("chats.parquet"), dir_ / "b.parquet");
  EXPECT_EQ(ReadDocuments({dir_}).back().where,
            (dir_ / "b.parquet").string() + ": row group 2, row 3");
}

TEST_F(DataTest, ErrorsOfParquetNameTheFile) {
  const auto error = [](const char* name) {
    return ErrorOf([&] { ReadDocuments({ParquetFile(name)}); });
  };
  EXPECT_THAT(error("empty.parquet"), HasSubstr("empty.parquet: no document found"));
  EXPECT_THAT(error("other.parquet"),
              HasSubstr("other.parquet: has none of the columns \"text\", \"messages\" and "
                        "\"output_ids\"; it has 2 columns: \"prose\", \"id\""));
  EXPECT_THAT(error("map.parquet"), HasSubstr("map.parquet: column \"tools\" is a map"));
  EXPECT_THAT(error("lz4.parquet"),
              HasSubstr("lz4.parquet: row group 0, column \"text\": the codec LZ4_RAW is not"));
  EXPECT_THAT(ReadError("x.parquet", "PAR1 and no more"), HasSubstr("x.parquet: "));
  EXPECT_THAT(ErrorOf([&] { ReadDocuments({dir_ / "none.parquet"}); }, ErrorKind::kNotFound),
              HasSubstr("none.parquet"));
}

TEST_F(DataTest, TextEndsWithEosAndSpelledTokensStayText) {
  WriteChatTokenizer("");
  const DocumentEncoder encoder(dir_, DocumentEncoder::ChatLoss::kAssistant);
  const EncodedDocument out = encoder.Encode({.text = "hello <|im_end|>", .messages = nullptr});
  EXPECT_EQ(out.ids.back(), 2);
  EXPECT_EQ(std::ranges::count(out.ids, 2), 1);
  EXPECT_EQ(out.learned, std::vector<uint8_t>(out.ids.size(), 1));
}

TEST_F(DataTest, OnlyTheAssistantIsLearned) {
  WriteChatTokenizer(kDefaultChatTemplate);
  Document chat{.where = "a.jsonl:1"};
  chat.messages = {{{"role", "user"}, {"content", "hello"}},
                   {{"role", "assistant"}, {"content", "there"}},
                   {{"role", "user"}, {"content", "hello hello"}},
                   {{"role", "assistant"}, {"content", "there there"}}};
  const DocumentEncoder encoder(dir_, DocumentEncoder::ChatLoss::kAssistant);
  const EncodedDocument out = encoder.Encode(chat);
  std::vector<int32_t> learned;
  for (size_t i = 0; i < out.ids.size(); ++i) {
    if (out.learned[i] != 0) learned.push_back(out.ids[i]);
  }
  EXPECT_EQ(encoder.tokenizer().Decode(learned, false), "there<|im_end|>\nthere there<|im_end|>\n");
  EXPECT_EQ(encoder.AnswersOf(chat), learned);
  const EncodedDocument all = DocumentEncoder(dir_, DocumentEncoder::ChatLoss::kAll).Encode(chat);
  EXPECT_EQ(all.ids, out.ids);
  EXPECT_EQ(all.learned, std::vector<uint8_t>(all.ids.size(), 1));

  chat.messages.erase(3);
  chat.messages.erase(1);
  EXPECT_THAT(ErrorOf([&] { encoder.Encode(chat); }), HasSubstr("a.jsonl:1: no message with role"));
}

TEST_F(DataTest, ToolsAndVariablesReachTheTemplate) {
  WriteChatTokenizer(
      "{{ greeting }}{% for t in tools %}{{ t['name'] }};{% endfor %}"
      "{% for m in messages %}{{ m['role'] }} {{ m['content'] or '' }}"
      "{% for c in m['tool_calls'] %}{{ c['name'] }}{% endfor %}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}assistant {% endif %}");
  using Json = nlohmann::ordered_json;
  const Json named = {{"name", "hello"}};
  Document chat{.where = "a.jsonl:1",
                .tools = Json::array({named}),
                .template_kwargs = {{"greeting", "there "}}};
  chat.messages = {
      {{"role", "user"}, {"content", "there"}},
      {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({named})}}};
  const DocumentEncoder encoder(dir_, DocumentEncoder::ChatLoss::kAssistant);
  const EncodedDocument out = encoder.Encode(chat);
  std::vector<int32_t> learned;
  for (size_t i = 0; i < out.ids.size(); ++i) {
    if (out.learned[i] != 0) learned.push_back(out.ids[i]);
  }
  EXPECT_EQ(encoder.tokenizer().Decode(out.ids, false),
            "there hello;user there<|im_end|>assistant hello<|im_end|>");
  EXPECT_EQ(encoder.tokenizer().Decode(learned, false), "hello<|im_end|>");
}

TEST_F(DataTest, ATemplateThatRewritesEarlierTextIsRefused) {
  WriteChatTokenizer("{{ messages|length }}{% for m in messages %}{{ m['content'] }}{% endfor %}");
  Document chat{.where = "a.jsonl:7"};
  chat.messages = {{{"role", "user"}, {"content", "hello"}},
                   {{"role", "assistant"}, {"content", "there"}}};
  const DocumentEncoder encoder(dir_, DocumentEncoder::ChatLoss::kAssistant);
  EXPECT_THAT(ErrorOf([&] { encoder.Encode(chat); }), HasSubstr("a.jsonl:7: message 1"));
  EXPECT_EQ(encoder.tokenizer().Decode(encoder.AnswersOf(chat), false), "there");
  chat.messages.erase(1);
  EXPECT_THAT(encoder.AnswersOf(chat), IsEmpty());
}

std::vector<EncodedDocument> MadeUp(const std::vector<int>& lengths) {
  std::vector<EncodedDocument> out;
  int32_t next = 0;
  for (const int length : lengths) {
    EncodedDocument& document = out.emplace_back();
    for (int i = 0; i < length; ++i) document.ids.push_back(next++);
    document.learned.assign(static_cast<size_t>(length), 1);
  }
  return out;
}

TEST(PackingTest, EveryTokenIsATargetOnce) {
  const std::vector<int> lengths{3, 1, 40, 2, 9, 0, 17, 5};
  const auto documents = MadeUp(lengths);
  const std::vector<int64_t> sizes(lengths.begin(), lengths.end());
  for (const bool whole : {false, true}) {
    const PackingOptions options{.length = 8, .whole_documents = whole, .seed = 3};
    std::multiset<int32_t> targets;
    for (const Row& row : PackEpoch(sizes, options, 0)) {
      Batch batch;
      AppendRow(documents, row, &batch);
      EXPECT_LE(batch.size(), 8);
      EXPECT_EQ(batch.sequences(), static_cast<int64_t>(row.size()));
      for (int64_t i = 0; i < batch.size(); ++i) EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      targets.insert(batch.targets.begin(), batch.targets.end());
      for (const Part& part : row) {  // documents that fit in a row are not split
        if (!whole || sizes[part.document] > 9) continue;
        EXPECT_EQ(part.length, sizes[part.document] - 1);
      }
    }
    EXPECT_EQ(targets.size(), 2u + 39 + 1 + 8 + 16 + 4);
    EXPECT_EQ(std::set<int32_t>(targets.begin(), targets.end()).size(), targets.size());
  }
}

TEST(PackingTest, EpochsDifferAndRepeat) {
  const std::vector<int64_t> sizes(50, 7);
  const PackingOptions options{.length = 16, .seed = 9};
  EXPECT_EQ(PackEpoch(sizes, options, 1), PackEpoch(sizes, options, 1));
  EXPECT_NE(PackEpoch(sizes, options, 1), PackEpoch(sizes, options, 2));
  EXPECT_NE(PackEpoch(sizes, options, 1), PackEpoch(sizes, {.length = 16, .seed = 10}, 1));
  const auto in_order = PackEpoch(sizes, {.length = 16, .shuffle = false}, 5);
  EXPECT_EQ(in_order[0][0], (Part{0, 0, 6}));
}

TEST(CorpusTest, ResumesAtTheExactRow) {
  Corpus corpus(MadeUp({30, 40, 50}), {.length = 8, .seed = 1});
  SamplePosition position;
  const std::vector<Row> all = corpus.Take(40, &position);
  EXPECT_GT(position.epoch, 1);
  SamplePosition again;
  std::vector<Row> pieces;
  for (const int count : {1, 7, 20, 12}) {
    // A new object, as after a restart of the run.
    Corpus other(MadeUp({30, 40, 50}), {.length = 8, .seed = 1});
    for (Row& row : other.Take(count, &again)) pieces.push_back(std::move(row));
    EXPECT_EQ(other.fingerprint(), corpus.fingerprint());
  }
  EXPECT_EQ(pieces, all);
  EXPECT_EQ(again, position);
  EXPECT_NE(Corpus(MadeUp({30, 40, 51}), {.length = 8, .seed = 1}).fingerprint(),
            corpus.fingerprint());
}

TEST(CorpusTest, NothingToLearnIsAnError) {
  EXPECT_THAT(ErrorOf([] { Corpus({}, {}); }), HasSubstr("the corpus is empty"));
  auto documents = MadeUp({4});
  documents[0].learned = {1, 0, 0, 0};
  EXPECT_THAT(ErrorOf([&] { Corpus(documents, {}); }), HasSubstr("none of which is a target"));
}

TEST(CorpusTest, MicroBatchesAndRanksShareTheRowsOfAStep) {
  for (const int64_t rows : {1, 5, 8, 13}) {
    int64_t next = 0;
    for (int64_t index = 0; index < 3; ++index) {
      for (int rank = 0; rank < 4; ++rank) {
        const Range range = RowsOfMicroBatch(rows, index, 3, rank, 4);
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
    }
    EXPECT_EQ(next, rows);
  }
}

}  // namespace
}  // namespace switchyard::train
