// What the environment says about the hub, read as huggingface_hub reads it.
#pragma once

#include <string>

#include "core/base.h"

namespace moxie::hub {

struct Settings {
  std::string endpoint;      ///< HF_ENDPOINT, without a "/" at its end
  std::string token;         ///< HF_TOKEN, HUGGING_FACE_HUB_TOKEN or the token file; may be empty
  std::string token_source;  ///< which of them, for messages
  std::string cache;         ///< the folder of the cache
  std::string offline;       ///< the variable that forbids the network, such as HF_HUB_OFFLINE=1
  std::string ca_file;       ///< certificates to trust instead of the system's; may be empty
  int stall_s = 30;  ///< HF_HUB_DOWNLOAD_TIMEOUT: without a byte for so long, a transfer ends
};

/// A fault if a variable cannot mean anything.
Result<Settings> read_settings();

}  // namespace moxie::hub
