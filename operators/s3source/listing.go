package s3source

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// position is where a listing goes on.
type position struct {
	After     string    `json:"after"`     // the last key of the last group that lies before it
	Partition string    `json:"partition"` // of that group
	Units     int       `json:"units"`     // groups that lie before it
	WholeAt   time.Time `json:"whole_at"`  // when everything was listed last
}

// group is the objects of a partition, in the order of their keys.
type group struct {
	partition string
	keys      []string
	contents  []string
}

func (g group) Len() int           { return len(g.keys) }
func (g group) Less(i, j int) bool { return g.keys[i] < g.keys[j] }
func (g group) Swap(i, j int) {
	g.keys[i], g.keys[j] = g.keys[j], g.keys[i]
	g.contents[i], g.contents[j] = g.contents[j], g.contents[i]
}

// unit returns the group as what there is to read.
func (g group) unit() (operators.Unit, error) {
	payload, err := json.Marshal(unit{Objects: g.keys})
	return operators.Unit{Partition: g.partition, Version: operators.FilesVersion(g.keys, g.contents),
		Payload: payload}, err
}

// Enumerate implements operators.Enumerator: it lists everything.
func (o *operator) Enumerate(ctx context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	e.Position = nil
	found, err := o.Resume(ctx, e)
	return found.Units, err
}

// Resume implements operators.Resumer. It lists everything unless keys ascend and the position is young enough.
func (o *operator) Resume(ctx context.Context, e operators.Enumeration) (found operators.Listing, err error) {
	c, configFault := parse(e.Config)
	if configFault != nil {
		return found, operators.Permanent(operators.ConfigError(configFault))
	}
	b, err := o.open(c, e.SecretTo)
	if err != nil {
		return found, err
	}

	from := position{WholeAt: e.Now}
	var last position
	if c.AscendingKeys && len(e.Position) > 0 && json.Unmarshal(e.Position, &last) == nil && last.After != "" &&
		e.Now.Sub(last.WholeAt) < c.listAll {
		from = last
	}
	groups, left, err := b.groups(ctx, e.PartitionBy, from.After)
	if err == nil && from.After != "" && len(groups) > 0 && groups[0].partition == from.Partition {
		// A late object of a partition whose others lie before the position.
		from = position{WholeAt: e.Now}
		groups, left, err = b.groups(ctx, e.PartitionBy, "")
	}
	if err != nil {
		return found, err
	}

	found.Before, found.Partial, found.LeftOut = from.Units, from.After != "", left
	for _, g := range groups {
		u, err := g.unit()
		if err != nil {
			return found, err
		}
		found.Units = append(found.Units, u)
	}
	if c.AscendingKeys {
		found.Position, err = json.Marshal(from.advance(groups, found.Units, e.Known))
	}
	return found, err
}

// advance returns the position behind the groups that are settled. The last group stays before it, as more objects of
// it may come.
func (p position) advance(groups []group, units []operators.Unit, known map[string]string) position {
	for i, g := range groups[:max(len(groups)-1, 0)] {
		if known[g.partition] != units[i].Version {
			break
		}
		p.After, p.Partition, p.Units = g.keys[len(g.keys)-1], g.partition, p.Units+1
	}
	return p
}

// groups lists the objects behind a key by partition, and those whose names give none. Where keys ascend, the groups
// are in the order of their keys, otherwise in that of their partitions.
func (b *objects) groups(
	ctx context.Context, by dag.Partitioning, after string,
) (groups []group, left operators.LeftOut, err error) {
	at, previous := map[string]int{}, after
	err = b.list(ctx, after, func(key string, o types.Object) error {
		if b.AscendingKeys && key <= previous {
			return operators.Permanent(fault.New(fault.Invalid,
				"the server lists %s behind %s, which is not the order of keys", key, previous).
				WithHint("leave ascending_keys out: everything is listed each time then"))
		}
		previous = key
		partition, ok, err := b.names.PartitionOf(strings.TrimPrefix(key, b.Prefix), by)
		if err != nil {
			left.Add(err)
		}
		if err != nil || !ok {
			return nil
		}

		i, known := at[partition]
		if !known {
			i = len(groups)
			at[partition], groups = i, append(groups, group{partition: partition})
		}
		groups[i].keys = append(groups[i].keys, key)
		groups[i].contents = append(groups[i].contents, contentOf(o.ETag, o.Size, o.LastModified))
		return nil
	})
	for _, g := range groups {
		sort.Sort(g) // not all servers list objects in their order
	}
	if !b.AscendingKeys {
		slices.SortFunc(groups, func(x, y group) int { return strings.Compare(x.partition, y.partition) })
	}
	return groups, left, err
}

// list calls each for all objects whose keys begin as those that the config selects, behind a key.
func (b *objects) list(ctx context.Context, after string, each func(key string, o types.Object) error) error {
	in := &s3.ListObjectsV2Input{Bucket: &b.Bucket, EncodingType: types.EncodingTypeUrl}
	if begin := b.Prefix + b.names.Fixed(); begin != "" {
		in.Prefix = &begin
	}
	if after != "" {
		in.StartAfter = &after
	}

	for number := 0; ; {
		page, err := b.page(ctx, in)
		if err != nil {
			return b.failed(ctx, "list objects", err)
		}

		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if page.EncodingType == types.EncodingTypeUrl {
				if key, err = url.QueryUnescape(key); err != nil {
					return fault.New(fault.Unavailable,
						"list objects of bucket %s: a key is not encoded as it should be", b.Bucket)
				}
			}
			number++
			if err = check(key, o, number); err == nil {
				err = each(key, o)
			}
			if err != nil {
				return err
			}
		}

		next := aws.ToString(page.NextContinuationToken)
		switch {
		case !aws.ToBool(page.IsTruncated):
			return nil
		case next == "" || next == aws.ToString(in.ContinuationToken):
			return fault.New(fault.Unavailable,
				"list objects of bucket %s: the server does not say where the listing goes on", b.Bucket)
		}
		in.ContinuationToken = &next
	}
}

// pageFor is how long a server may take for a page.
const pageFor = time.Minute

func (b *objects) page(ctx context.Context, in *s3.ListObjectsV2Input) (*s3.ListObjectsV2Output, error) {
	ctx, cancel := context.WithTimeout(ctx, pageFor)
	defer cancel()
	return b.client.ListObjectsV2(ctx, in)
}
