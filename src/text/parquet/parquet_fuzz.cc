// Reads arbitrary bytes as a Parquet file. The result must be rows, or an Error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/parquet/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace parquet = switchyard::parquet;
  try {
    const std::string name = "input";
    parquet::Metadata metadata = parquet::ReadMetadata({data, size}, name);
    const std::vector<std::string> columns = parquet::RootColumns(metadata);
    const std::vector<std::string_view> wanted(columns.begin(), columns.end());
    parquet::RowReader reader({data, size}, name, std::move(metadata), wanted);
    // A small file may have millions of equal rows.
    for (int i = 0; i < 1000 && reader.Next(); ++i) {
    }
  } catch (const switchyard::Error&) {
  }
  return 0;
}
