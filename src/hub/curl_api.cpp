#include "hub/curl_api.h"

namespace moxie::hub {
namespace {

Result<CurlApi> start() {
  Result<CurlApi> api = find_curl();
  if (api && api->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return fail("it does not start", "libcurl");
  return api;
}

}  // namespace

Result<const CurlApi*> curl_api() {
  static const Result<CurlApi> api = start();
  if (!api) return fail(api.error());
  return &*api;
}

}  // namespace moxie::hub
