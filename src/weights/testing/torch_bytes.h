// Makes the file that torch.save writes of a vector of F32, as far as its reader looks at it: CRCs
// are 0, and the entries that a reader passes over are missing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace moxie {

inline std::string torch_bytes(const std::vector<float>& values) {
  const auto number = [](uint64_t value, size_t num_bytes) {
    std::string bytes(num_bytes, '\0');
    std::memcpy(bytes.data(), &value, num_bytes < 8 ? num_bytes : 8);
    return bytes;
  };
  const auto text = [&](const std::string& one) { return "X" + number(one.size(), 4) + one; };
  const std::string size = "J" + number(values.size(), 4);
  const std::string pickle =
      "\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\n((" +
      text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + size + "tQ" +
      std::string("K\0", 2) + size + "\x85K\x01\x85\x89" + "ccollections\nOrderedDict\n)RtR.";
  const std::string data(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  std::string file, directory;
  for (const auto& [name, bytes] : {std::pair("m/data.pkl", pickle), std::pair("m/data/0", data)}) {
    const std::string name_text = name;
    const std::string place = number(file.size(), 4);
    // Version, flags, method (stored), time, date, CRC; sizes; lengths of name and extra field.
    const std::string common = number(0, 14) + number(bytes.size(), 4) + number(bytes.size(), 4) +
                               number(name_text.size(), 2) + number(0, 2);
    for (const std::string& part : {std::string("PK\3\4"), common, name_text, bytes}) file += part;
    for (const std::string& part :
         {std::string("PK\1\2"), number(0, 2), common, number(0, 10), place, name_text})
      directory += part;
  }
  return file + directory + "PK\5\6" + number(0, 4) + number(2, 2) + number(2, 2) +
         number(directory.size(), 4) + number(file.size(), 4) + number(0, 2);
}

}  // namespace moxie
