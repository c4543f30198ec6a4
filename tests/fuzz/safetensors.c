/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file, or as the header and the data of one whose lengths are right. It must be refused with a line,
 * or what its header says must hold: names differ, tensors lie one after the other in the data, and all of them are found and can
 * be read; and a header that is written anew from what was read says the same. */
#include "readers.h"

#include "../../cli/map.c"              /* NOLINT(bugprone-suspicious-include): with the calls of readers.h */
#include "../../examples/safetensors.c" /* NOLINT(bugprone-suspicious-include): with the calls of readers.h */

static char text[1 << 18]; /* of a header that is written anew, in which a byte may take six */
static size_t used;

static void __attribute__((format(printf, 1, 2))) add(const char *format, ...) {
    va_list args;
    va_start(args, format);
    used += (size_t)vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    require(used < sizeof text, "a header becomes longer than it can");
}

/* As JSON: what is below a space has to be escaped, and of the others every third one is, if it is a character by itself. */
static void add_string(const char *string) {
    add("\"");
    for (const unsigned char *at = (const unsigned char *)string; *at; at++) {
        if (*at < ' ' || *at == '"' || *at == '\\' || (*at < 0x80 && *at % 3 == 0)) add("\\u%04x", *at);
        else add("%c", *at);
    }
    add("\"");
}

static void write_header(const safetensors_file *file) {
    used = 8;
    add("{ \"__metadata__\" : {");
    for (size_t i = 0; i < file->metadata_count; i++) {
        add(i ? ", " : "");
        add_string(file->metadata[i].key), add(":"), add_string(file->metadata[i].value);
    }
    add("}");
    for (size_t i = file->tensor_count; i-- > 0;) {
        const safetensors_tensor *t = &file->tensors[i];
        add(",\n"), add_string(t->name), add(":{\"data_offsets\":[%" PRId64 ",%" PRId64 "],\"shape\":[", t->begin, t->end);
        for (int d = 0; d < t->rank; d++) add("%s%" PRId64, d ? "," : "", t->dims[d]);
        add("],\"dtype\":"), add_string(t->dtype), add("}");
    }
    add("} ");
    for (int i = 0; i < 8; i++) text[i] = (char)((used - 8) >> 8 * i);
}

static void require_same(const safetensors_file *a, const safetensors_file *b) {
    require(a->tensor_count == b->tensor_count && a->metadata_count == b->metadata_count, "other numbers of entries");
    for (size_t i = 0; i < a->metadata_count; i++)
        require(!strcmp(a->metadata[i].key, b->metadata[i].key) && !strcmp(a->metadata[i].value, b->metadata[i].value),
                "other metadata");
    for (size_t i = 0; i < a->tensor_count; i++) {
        const safetensors_tensor *s = &a->tensors[i], *t = &b->tensors[i];
        require(!strcmp(s->name, t->name) && !strcmp(s->dtype, t->dtype) && s->type == t->type && s->rank == t->rank &&
                    !memcmp(s->dims, t->dims, sizeof s->dims) && s->begin == t->begin && s->end == t->end,
                "another tensor");
        require(t->begin == t->end || !memcmp(s->data, t->data, (size_t)(t->end - t->begin)), "other data");
    }
}

static void look_at(const safetensors_file *file, const char *data, int64_t data_bytes) {
    char fault[SAFETENSORS_FAULT_BYTES];
    int64_t covered = 0;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const safetensors_tensor *t = &file->tensors[i];
        require(i == 0 || strcmp(file->tensors[i - 1].name, t->name) < 0, "names are not sorted");
        require(safetensors_find(file, t->name) == t, "a tensor is not found");
        require(t->rank >= 0 && t->rank <= SAFETENSORS_MAX_RANK, "a rank above the most");
        require(t->begin >= 0 && t->begin <= t->end && t->end <= data_bytes, "a tensor outside of the data");
        require(!memcmp(t->data, data + t->begin, (size_t)(t->end - t->begin)), "other data");
        covered += t->end - t->begin;
        for (size_t j = 0; j < i; j++)
            require(t->end <= file->tensors[j].begin || file->tensors[j].end <= t->begin, "tensors meet");
        require(safetensors_shaped(file, t->name, t->rank, t->dims, fault) == t, "a tensor has not its own shape");
        const float *const numbers = safetensors_f32(file, t->name, t->rank, t->dims, fault);
        require(!numbers || (t->type == RAPT_F32 && numbers == t->data), "a tensor that is not of f32");
        int64_t dims[SAFETENSORS_MAX_RANK] = {0};
        if (t->rank) {
            memcpy(dims, t->dims, sizeof dims);
            dims[t->rank - 1] ^= 1;
            require(!safetensors_shaped(file, t->name, t->rank, dims, fault) && fault[0], "a tensor has another shape");
        }
    }
    require(covered == data_bytes, "there is data of no tensor");
    for (size_t i = 0; i < file->metadata_count; i++)
        require(safetensors_metadata(file, file->metadata[i].key) != NULL, "metadata is not found");

    write_header(file);
    require(used + (size_t)data_bytes <= sizeof text, "a header becomes longer than it can");
    memcpy(text + used, data, (size_t)data_bytes);
    safetensors_file again;
    require(safetensors_open(&again, file_of(text, used + (size_t)data_bytes), fault), "it cannot be read again");
    require_same(file, &again);
    safetensors_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static uint8_t file[1 << 15];
    input in = {bytes, size};
    const bool whole = choose(&in, 8) == 0;
    const size_t data = (size_t)choose(&in, 256), room = sizeof file - 8 - data, header = in.size < room ? in.size : room;
    size_t bytes_used = header;
    if (header) memcpy(whole ? file : file + 8, in.bytes, header);
    if (!whole) {
        for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
        for (size_t i = 0; i < data; i++) file[8 + header + i] = (uint8_t)(i * 37);
        bytes_used += 8 + data;
    }
    safetensors_file opened;
    char fault[SAFETENSORS_FAULT_BYTES] = "";
    if (safetensors_open(&opened, file_of(file, bytes_used), fault)) {
        uint64_t length = 0;
        for (int i = 7; i >= 0; i--) length = length << 8 | file[i];
        look_at(&opened, (const char *)file + 8 + length, (int64_t)(bytes_used - 8 - length));
        safetensors_close(&opened);
    } else {
        require(fault[0] && memchr(fault, 0, sizeof fault) && !strchr(fault, '\n') && !opened.file.at,
                "a refusal without a line");
    }
    return 0;
}
