// libcurl as the linker found it.
#include "hub/curl_api.h"

namespace moxie::hub {

Result<CurlApi> find_curl() {
  return CurlApi{.global_init = &::curl_global_init,
                 .easy_init = &::curl_easy_init,
                 .easy_reset = &::curl_easy_reset,
                 .easy_cleanup = &::curl_easy_cleanup,
                 .easy_setopt = &::curl_easy_setopt,
                 .easy_perform = &::curl_easy_perform,
                 .easy_getinfo = &::curl_easy_getinfo,
                 .easy_strerror = &::curl_easy_strerror,
                 .slist_append = &::curl_slist_append,
                 .slist_free_all = &::curl_slist_free_all,
                 .url = &::curl_url,
                 .url_cleanup = &::curl_url_cleanup,
                 .url_set = &::curl_url_set,
                 .url_get = &::curl_url_get,
                 .free = &::curl_free};
}

}  // namespace moxie::hub
