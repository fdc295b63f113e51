// Joins the images of a release: one index per image, with an entry for each platform, and pushes it.
//
//	oci index OUTPUT.tar NAME:TAG FOLDER...   FOLDER has the archive of the same name with the image of one platform.
//	                                          Prints the digest of the index.
//	oci push ARCHIVE.tar REGISTRY/NAME:TAG    pushes the index of an archive. Prints the reference by digest.
package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// How long a push may take.
const pushLimit = 10 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "oci:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 4 && args[0] == "index":
		digest, err := writeIndex(args[1], args[2], args[3:])
		if err != nil {
			return fmt.Errorf("write %s: %w", args[1], err)
		}
		fmt.Println(digest)
		return nil
	case len(args) == 3 && args[0] == "push":
		ctx, cancel := context.WithTimeout(context.Background(), pushLimit)
		defer cancel()
		reference, err := push(ctx, args[1], args[2])
		if err != nil {
			return fmt.Errorf("push %s to %s: %w", args[1], args[2], err)
		}
		fmt.Println(reference)
		return nil
	}
	return errors.New("usage: oci index OUTPUT.tar NAME:TAG FOLDER... | oci push ARCHIVE.tar REGISTRY/NAME:TAG")
}

// Writes an OCI archive whose only entry is an index with one image per folder, and returns the digest of that index.
func writeIndex(output, reference string, folders []string) (v1.Hash, error) {
	archive := filepath.Base(output)
	scratch, err := os.MkdirTemp("", "gpunode-oci")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(scratch)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	platforms := map[string]string{}
	for _, folder := range folders {
		image, err := imageOf(filepath.Join(folder, archive), filepath.Join(scratch, filepath.Base(folder)))
		if err != nil {
			return v1.Hash{}, fmt.Errorf("read %s of %s: %w", archive, folder, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			return v1.Hash{}, fmt.Errorf("read %s of %s: %w", archive, folder, err)
		}
		platform := config.Platform()
		if other, known := platforms[platform.String()]; known {
			return v1.Hash{}, fmt.Errorf("%s and %s both have an image for %s", other, folder, platform)
		}
		platforms[platform.String()] = folder
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	_, tag, found := strings.Cut(reference, ":")
	if !found {
		return v1.Hash{}, fmt.Errorf("%s has no tag", reference)
	}
	written, err := layout.Write(filepath.Join(scratch, "joined"), empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	annotations := map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": reference}
	if err := written.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
		return v1.Hash{}, err
	}
	if err := pack(filepath.Join(scratch, "joined"), output); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// Unpacks an archive with one image into a folder, and returns the image.
func imageOf(archive, folder string) (v1.Image, error) {
	root, err := unpacked(archive, folder)
	if err != nil {
		return nil, err
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("has %d images, not one", len(manifest.Manifests))
	}
	return root.Image(manifest.Manifests[0].Digest)
}

func unpacked(archive, folder string) (v1.ImageIndex, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader := tar.NewReader(file)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(header.Name) {
			return nil, fmt.Errorf("entry %q leaves the archive", header.Name)
		}
		if err := writeFile(filepath.Join(folder, header.Name), reader); err != nil {
			return nil, err
		}
	}
	return layout.ImageIndexFromPath(folder)
}

func writeFile(path string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// Packs a folder so that equal files make equal archives.
func pack(folder, output string) error {
	var files []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	sort.Strings(files)
	archive, err := os.Create(output)
	if err != nil {
		return err
	}
	defer archive.Close()
	writer := tar.NewWriter(archive)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		header := &tar.Header{
			Name: path.Clean(filepath.ToSlash(relative)), Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		if _, err := writer.Write(content); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return archive.Close()
}

// Pushes the index of an archive under a tag, and returns its reference by digest.
func push(ctx context.Context, archive, reference string, options ...remote.Option) (string, error) {
	scratch, err := os.MkdirTemp("", "gpunode-oci")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	root, err := unpacked(archive, scratch)
	if err != nil {
		return "", err
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return "", err
	}
	if len(manifest.Manifests) != 1 || !manifest.Manifests[0].MediaType.IsIndex() {
		return "", errors.New("the archive is none of `oci index`")
	}
	index, err := root.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return "", err
	}
	if err := remote.WriteIndex(tag, index, append(options, remote.WithContext(ctx))...); err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return tag.Context().Digest(digest.String()).String(), nil
}
