package contract

import "strings"

// stated adds what follows from the facts alone: jobs that cannot go on with other partitions, and stable views that
// cannot stay as they are.
func (c *comparison) stated() {
	for _, u := range c.facts.Unfit {
		c.add(Finding{Kind: PartitioningChanged, Level: Refuses, Dataset: u.Name, Text: u.Text, Hint: u.Hint,
			Breaking: true, Consumers: []string{u.Consumer}})
	}

	for _, v := range c.facts.Views {
		was := c.was[v.Dataset]
		switch {
		case was == nil:
		case v.Refused != "":
			c.add(Finding{Kind: ViewInUse, Level: Refuses, Dataset: was.Name, Text: v.Refused, Breaking: true})
		case len(v.Becomes) > 0:
			f := Finding{Kind: ViewRemade, Level: Says, Dataset: was.Name}
			f.Text = "view " + v.Name + " would be made anew, with its grants: " + strings.Join(v.Becomes, ", ")
			if len(v.Carried) > 0 {
				f.Text += "; defined over it again would be " + strings.Join(v.Carried, ", ")
			}
			c.add(f)
		}
	}
}
