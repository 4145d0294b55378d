// Answers requests of `moxie eval` by an endpoint with OpenAI's chat completions, over libcurl.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "hub/curl_api.h"
#include "lab/eval_set.h"

namespace moxie {

class EvalEndpoint {
 public:
  /// `url`: "http://host:8000" or "http://host:8000/v1". `model`: empty asks the endpoint for the
  /// first of its models. `stop`, once true, ends requests; it must outlive this.
  static Result<std::unique_ptr<EvalEndpoint>> open(const std::string& url, std::string model,
                                                    std::string api_key, int timeout_s,
                                                    const std::atomic<bool>& stop);

  /// Waits for the answer; from any thread. A busy endpoint (429, 503) is asked again after the
  /// time that it names, for as long as `timeout_s`.
  Result<EvalReply> ask(const std::string& request) const;
  const std::string& model() const { return model_; }

 private:
  struct Response {
    long status = 0;
    std::string body;
    double retry_after_s = 0;
  };
  EvalEndpoint(const hub::CurlApi& api, std::string base, std::string api_key, int timeout_s,
               const std::atomic<bool>& stop);
  /// GET where `body` is null.
  Result<Response> request(const std::string& path, const std::string* body) const;
  Status find_model();

  const hub::CurlApi& api_;
  std::string base_, api_key_, model_;
  int timeout_s_;
  const std::atomic<bool>& stop_;
};

/// The reply in the body of a chat completion. `where` names the endpoint in errors.
Result<EvalReply> parse_completion(const std::string& body, const std::string& where);

}  // namespace moxie
