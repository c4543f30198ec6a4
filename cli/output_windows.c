/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs on Windows. The temporary file is marked to be deleted when its last handle is closed, which happens at the latest when
 * the process ends, for whatever reason. The mark is removed only when the file gets its name. */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

enum { PATH_BYTES = 4096 };

/* Sets errno by the last error of Windows, and returns false. */
static bool failed(void) {
    static const struct {
        DWORD error;
        int number;
    } numbers[] = {{ERROR_FILE_NOT_FOUND, ENOENT},   {ERROR_PATH_NOT_FOUND, ENOENT},
                   {ERROR_INVALID_NAME, ENOENT},     {ERROR_BAD_PATHNAME, ENOENT},
                   {ERROR_ACCESS_DENIED, EACCES},    {ERROR_SHARING_VIOLATION, EACCES},
                   {ERROR_USER_MAPPED_FILE, EACCES}, {ERROR_FILE_EXISTS, EEXIST},
                   {ERROR_DISK_FULL, ENOSPC},        {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG}};
    const DWORD error = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].error == error) errno = numbers[i].number;
    return false;
}

/* True if both are handles of one file. Under Wine, the volume is 0 for a file that was opened by a program of the host system.
 */
static bool is_same_file(HANDLE file, HANDLE other) {
    FILE_ID_INFO a, b;
    return GetFileInformationByHandleEx(file, FileIdInfo, &a, sizeof a) &&
           GetFileInformationByHandleEx(other, FileIdInfo, &b, sizeof b) &&
           (a.VolumeSerialNumber == b.VolumeSerialNumber || !a.VolumeSerialNumber || !b.VolumeSerialNumber) &&
           memcmp(&a.FileId, &b.FileId, sizeof a.FileId) == 0;
}

static HANDLE standard_output(void) { return (HANDLE)_get_osfhandle(1); }

/* Returns a handle of a file or folder, with neither the right to read nor to write it. */
static HANDLE open_present(const char *path) {
    return CreateFileA(path, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                       FILE_FLAG_BACKUP_SEMANTICS, NULL);
}

/* Returns such a handle of a located output that was present. */
static HANDLE open_located(const output *out) {
    HANDLE file = INVALID_HANDLE_VALUE;
    const HANDLE self = GetCurrentProcess();
    if (!out->standard) return open_present(out->target);
    DuplicateHandle(self, standard_output(), self, &file, 0, FALSE, DUPLICATE_SAME_ACCESS);
    return file;
}

/* True if the target is a terminal, unlike other devices such as NUL. */
static bool is_terminal(const output *out) {
    DWORD mode;
    if (out->standard) return GetConsoleMode(standard_output(), &mode);
    const HANDLE file =
        CreateFileA(out->target, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL, OPEN_EXISTING, 0, NULL);
    if (file == INVALID_HANDLE_VALUE) return false;
    const bool terminal = GetConsoleMode(file, &mode);
    CloseHandle(file);
    return terminal;
}

/* Locates an output whose target exists. */
static bool locate_present(output *out, HANDLE file, const char *path) {
    BY_HANDLE_FILE_INFORMATION about;
    char real[PATH_BYTES];
    const bool on_disk = GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &about);
    errno = EISDIR;
    if (on_disk && about.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) return false;
    out->present = true;
    out->standard = file == standard_output() || (on_disk && is_same_file(file, standard_output()));
    out->straight = out->standard || !on_disk;
    out->device = GetFileType(file) == FILE_TYPE_CHAR;
    if (out->straight) out->target = strdup(path);
    out->terminal = out->target && out->device && is_terminal(out);
    if (out->straight) return out->target;
    const DWORD length = GetFinalPathNameByHandleA(file, real, sizeof real, FILE_NAME_NORMALIZED | VOLUME_NAME_DOS);
    if (length == 0 || length >= sizeof real) return failed();
    return (out->target = strdup(real));
}

bool output_locate(output *out, const char *path) {
    char full[PATH_BYTES], *name = NULL;
    *out = (output){.target = NULL};
    if (!strcmp(path, OUTPUT_STANDARD)) {
        errno = EBADF;
        return standard_output() != INVALID_HANDLE_VALUE && locate_present(out, standard_output(), path);
    }
    const HANDLE file = open_present(path);
    if (file != INVALID_HANDLE_VALUE) {
        const bool located = locate_present(out, file, path);
        CloseHandle(file);
        return located;
    }
    if (GetLastError() != ERROR_FILE_NOT_FOUND) return failed();
    const DWORD length = GetFullPathNameA(path, sizeof full, full, &name);
    errno = ENOENT;
    if (length == 0 || length >= sizeof full || !name) return false;
    return (out->target = strdup(full));
}

bool output_is_file(const output *out, const char *path) {
    const HANDLE file = out->present ? open_present(path) : INVALID_HANDLE_VALUE;
    if (file == INVALID_HANDLE_VALUE) return false;
    const HANDLE own = open_located(out);
    const bool same = own != INVALID_HANDLE_VALUE && is_same_file(own, file);
    if (own != INVALID_HANDLE_VALUE) CloseHandle(own);
    CloseHandle(file);
    return same;
}

bool output_is_output(const output *a, const output *b) {
    if (!a->present || !b->present) return !a->present && !b->present && !_stricmp(a->target, b->target);
    if (a->standard && b->standard) return !a->device;
    return !a->device && output_is_file(a, b->target);
}

/* Marks a file to be deleted when its last handle is closed, or removes that mark. */
static bool mark_to_go(HANDLE file, bool go) {
    FILE_DISPOSITION_INFO mark = {.DeleteFile = go};
    return SetFileInformationByHandle(file, FileDispositionInfo, &mark, sizeof mark);
}

/* Creates the temporary file, and returns its handle; INVALID_HANDLE_VALUE, with the last error, on failure. */
static HANDLE create_temporary(output *out) {
    HANDLE file = INVALID_HANDLE_VALUE;
    const size_t bytes = strlen(out->target) + sizeof ".tmp01234567";
    char *path = malloc(bytes);
    DWORD number = GetCurrentProcessId() ^ GetTickCount();
    SetLastError(ERROR_NOT_ENOUGH_MEMORY);
    for (int tries = 0; path && tries < 100; tries++, number++) {
        snprintf(path, bytes, "%s.tmp%08lx", out->target, number);
        file = CreateFileA(path, GENERIC_WRITE | DELETE, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, CREATE_NEW,
                           FILE_ATTRIBUTE_NORMAL, NULL);
        if (file != INVALID_HANDLE_VALUE || GetLastError() != ERROR_FILE_EXISTS) break;
    }
    free(path);
    if (file != INVALID_HANDLE_VALUE) mark_to_go(file, true);
    return file;
}

/* Returns a descriptor, with a handle of its own, of the file that is written; -1, with errno, on failure. */
static int open_descriptor(output *out) {
    if (out->standard) return _dup(1);
    HANDLE file;
    if (out->straight) {
        file = CreateFileA(out->target, GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL, OPEN_EXISTING, 0, NULL);
        if (file == INVALID_HANDLE_VALUE) return failed() - 1;
    } else {
        const HANDLE temporary = create_temporary(out), self = GetCurrentProcess();
        if (temporary == INVALID_HANDLE_VALUE) return failed() - 1;
        out->temporary = temporary;
        if (!DuplicateHandle(self, temporary, self, &file, 0, FALSE, DUPLICATE_SAME_ACCESS)) return failed() - 1;
    }
    const int fd = _open_osfhandle((intptr_t)file, 0);
    if (fd < 0) CloseHandle(file);
    return fd;
}

bool output_open(output *out) {
    const int fd = open_descriptor(out);
    if (fd < 0) return false;
    _setmode(fd, _O_BINARY);
    out->file = _fdopen(fd, "wb");
    if (!out->file) _close(fd);
    return out->file;
}

bool output_close(output *out) {
    FILE *file = out->file;
    out->file = NULL;
    return !fclose(file);
}

/* Renames an open file. */
static bool rename_to(HANDLE file, const char *target) {
    const size_t most = strlen(target) + 1;
    FILE_RENAME_INFO *name = calloc(1, sizeof *name + most * sizeof(WCHAR));
    if (!name) return false;
    name->ReplaceIfExists = TRUE;
    const int letters = MultiByteToWideChar(CP_ACP, 0, target, -1, name->FileName, (int)most); /* with the terminator */
    name->FileNameLength = (DWORD)(letters - 1) * sizeof(WCHAR);
    const bool renamed =
        letters > 0 && SetFileInformationByHandle(file, FileRenameInfo, name, (DWORD)(sizeof *name + most * sizeof(WCHAR)));
    const DWORD error = GetLastError();
    free(name);
    SetLastError(error);
    return renamed || failed();
}

bool output_publish(output *out) {
    if (!out->temporary) return true;
    if (!mark_to_go(out->temporary, false)) return failed();
    if (!rename_to(out->temporary, out->target)) return mark_to_go(out->temporary, true), false;
    CloseHandle(out->temporary);
    out->temporary = NULL;
    return true;
}

void output_discard(output *out) {
    if (out->file) fclose(out->file);
    if (out->temporary) CloseHandle(out->temporary);
    free(out->target);
    *out = (output){.target = NULL};
}
