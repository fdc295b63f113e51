package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The folder of the images that `make images` built, in the environment of `make test`.
func images(t *testing.T) string {
	folder := os.Getenv("GPUNODE_IMAGES")
	if folder == "" {
		t.Skip("GPUNODE_IMAGES names no folder: make test")
	}
	return folder
}

// A folder with the images of `make images` as if they were of another architecture.
func foreign(t *testing.T, image, architecture string) string {
	folder := t.TempDir()
	original, err := imageOf(filepath.Join(images(t), "gpunode-"+image+".tar"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := original.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Architecture = architecture
	changed, err := mutate.ConfigFile(original, config)
	if err != nil {
		t.Fatal(err)
	}
	written, err := layout.Write(filepath.Join(folder, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := written.AppendImage(changed); err != nil {
		t.Fatal(err)
	}
	if err := pack(filepath.Join(folder, "layout"), filepath.Join(folder, "gpunode-"+image+".tar")); err != nil {
		t.Fatal(err)
	}
	return folder
}

func joined(t *testing.T, image string, folders ...string) (string, v1.Hash) {
	archive := filepath.Join(t.TempDir(), "gpunode-"+image+".tar")
	digest, err := writeIndex(archive, "gpunode.dev/"+image+":1.2.3", folders)
	if err != nil {
		t.Fatal(err)
	}
	return archive, digest
}

func sum(t *testing.T, path string) [sha256.Size]byte {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

func TestImagesComeBackFromARegistryByDigest(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for _, image := range []string{"agent", "operator"} {
		archive, digest := joined(t, image, images(t), foreign(t, image, "arm64"))
		pushed, err := push(context.Background(), archive, host+"/gpunode/"+image+":1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		if want := host + "/gpunode/" + image + "@" + digest.String(); pushed != want {
			t.Errorf("pushed %s, expected %s", pushed, want)
		}
		reference, err := name.NewDigest(pushed)
		if err != nil {
			t.Fatal(err)
		}
		index, err := remote.Index(reference)
		if err != nil {
			t.Fatal(err)
		}
		// Compares each blob with its digest.
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, entry := range manifest.Manifests {
			platforms = append(platforms, entry.Platform.String())
		}
		if got := strings.Join(platforms, " "); got != "linux/amd64 linux/arm64" {
			t.Errorf("the index has %s", got)
		}
		pulled, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := pulled.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(config.Config.Entrypoint, " "); got != "/gpunode-"+image {
			t.Errorf("the image starts %s", got)
		}
	}
}

func TestADigestThatNobodyPushedIsNotPulled(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	archive, _ := joined(t, "operator", images(t))
	if _, err := push(context.Background(), archive, host+"/operator:1.2.3"); err != nil {
		t.Fatal(err)
	}
	other, err := name.NewDigest(host + "/operator@sha256:" + strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	if index, err := remote.Index(other); err == nil {
		t.Errorf("got %v for a digest that nobody pushed", index)
	}
}

func TestEqualImagesMakeEqualArchives(t *testing.T) {
	first, one := joined(t, "agent", images(t))
	second, two := joined(t, "agent", images(t))
	if one != two || sum(t, first) != sum(t, second) {
		t.Errorf("%s (%x) and %s (%x)", one, sum(t, first), two, sum(t, second))
	}
}

func TestTwoImagesForOnePlatformAreRefused(t *testing.T) {
	folders := []string{images(t), foreign(t, "agent", "amd64")}
	_, err := writeIndex(filepath.Join(t.TempDir(), "gpunode-agent.tar"), "gpunode.dev/agent:1", folders)
	if err == nil || !strings.Contains(err.Error(), "both have an image for linux/amd64") {
		t.Errorf("got %v", err)
	}
}

func TestAnArchiveThatLeavesItsFolderIsRefused(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "linux-amd64")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(folder, "gpunode-agent.tar")
	if err := writeTar(archive, "../outside", "x"); err != nil {
		t.Fatal(err)
	}
	_, err := writeIndex(filepath.Join(t.TempDir(), "gpunode-agent.tar"), "gpunode.dev/agent:1", []string{folder})
	if err == nil || !strings.Contains(err.Error(), "leaves the archive") {
		t.Errorf("got %v", err)
	}
}

func writeTar(path, entry, content string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	writer := tar.NewWriter(file)
	if err := writer.WriteHeader(&tar.Header{Name: entry, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	if _, err := writer.Write([]byte(content)); err != nil {
		return err
	}
	return writer.Close()
}
